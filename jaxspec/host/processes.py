"""Several processes that run the same program, each with some of the devices: joining them, and what they exchange.

All of them read the same prompts and text and take the same steps, since every step of one waits for the others'. So
nothing that decides a step may come from a clock or a signal. The first process alone prints and writes, into a folder
that all of them see; only of a run's checkpoints does each write its own part (Orbax).
"""

import os
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

T = TypeVar("T")
AUTO = "auto"
LAST_TO_END = 60  # seconds that a process which has ended waits for the others: one that failed takes them with it then


def join(
    coordinator: str | None = None, processes: int | None = None, process_id: int | None = None, *, allowed: bool = True
) -> None:
    """Joins the other processes, before anything is computed; does nothing where there are none, or once it has.

    Args:
        coordinator: HOST:PORT of the first process; `auto` asks the environment, as does None where that speaks of
            several tasks (a TPU pod, SLURM).
        processes, process_id: how many there are, and which this is, from 0; with a HOST:PORT.
        allowed: whether others may be joined.

    Raises:
        ValueError: some of the three are missing, or do not fit, or there are others and none are allowed.
    """
    if not allowed and (coordinator is not None or has_neighbours(os.environ)):
        raise ValueError(
            "this command runs in one process, and cannot be spread over several hosts; `jaxspec generate`, `jaxspec "
            "eval`, `jaxspec-convert llama` and the training of heads can"
        )
    if coordinator in (None, AUTO):
        if processes is not None or process_id is not None:
            raise ValueError("--processes and --process-id go with --coordinator HOST:PORT")
        if coordinator is None and not has_neighbours(os.environ):
            return
        coordinator = None  # nor anything else: JAX finds out
    elif processes is None or process_id is None:
        raise ValueError(f"--coordinator {coordinator} needs --processes N and --process-id I, or write auto instead")
    elif not 0 <= process_id < processes:
        raise ValueError(f"--process-id goes from 0 to {processes - 1}, and is {process_id}")
    if not jax.distributed.is_initialized():
        jax.distributed.initialize(coordinator, processes, process_id, shutdown_timeout_seconds=LAST_TO_END)


def has_neighbours(environment: Any) -> bool:
    """Whether the variables of SLURM or of a TPU pod speak of several tasks."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    return (tasks.isdecimal() and int(tasks) > 1) or "," in environment.get("TPU_WORKER_HOSTNAMES", "")


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def fetch(arrays: T) -> T:
    """NumPy arrays of what may lie on devices of other processes; all of them must ask."""
    if jax.process_count() == 1:
        return jax.device_get(arrays)
    from jax.experimental.multihost_utils import process_allgather

    whole = lambda leaf: np.asarray(leaf) if leaf.is_fully_addressable else process_allgather(leaf, tiled=True)
    return jax.tree.map(whole, arrays)


def put(value: Any, sharding: NamedSharding) -> jax.Array:
    """An array cut as the sharding says; all processes have it whole, or it lies on devices of all of them already."""
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return jax.jit(_same, out_shardings=sharding)(value)
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])


def _same(value: jax.Array) -> jax.Array:
    return value


def spread(array: np.ndarray) -> np.ndarray | jax.Array:
    """An array that every process has, cut over them along the first axis that they divide, so that each writes a part
    of it; as it is where there is one process."""
    if (count := jax.process_count()) == 1:
        return array
    ours = {device.process_index: device for device in reversed(jax.devices())}  # the first device of each
    mesh = Mesh(np.array([ours[process] for process in sorted(ours)]), ("host",))
    axis = next((axis for axis, size in enumerate(array.shape) if size % count == 0), None)
    return put(array, NamedSharding(mesh, PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "host")))


def put_like(value: np.ndarray, old: jax.Array) -> jax.Array:
    """The value where `old` lies."""
    return put(value, old.sharding) if isinstance(old.sharding, NamedSharding) else jax.numpy.asarray(value)


def agreed(text: str) -> str:
    """The text that the first process has."""
    if jax.process_count() == 1:
        return text
    from jax.experimental.multihost_utils import broadcast_one_to_all

    ours = np.frombuffer(text.encode(), np.uint8)
    length = int(broadcast_one_to_all(np.int32(len(ours))))
    return broadcast_one_to_all(np.resize(ours, length)).astype(np.uint8).tobytes().decode()


def wait() -> None:
    """Waits until all processes are here: what one has written before, the others can read after."""
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import sync_global_devices

        sync_global_devices("jaxspec")
