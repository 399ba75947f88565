"""Several processes that run the same program, each with some of the devices: joining them, and what they exchange.

All of them read the same prompts and text and take the same steps, since every step of one waits for the others'. What
a clock or a file says may differ from host to host, so that the first process decides (`agreed`). It alone prints and
writes, but for Orbax, by which each process writes its part of the arrays.
"""

import os
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")
AUTO = "auto"


def join(coordinator: str | None = None, processes: int | None = None, process_id: int | None = None) -> None:
    """Joins the other processes, before anything is computed; does nothing where there are none.

    Args:
        coordinator: HOST:PORT of the first process; `auto` asks the environment, as does None where that speaks of
            several tasks (a TPU pod, SLURM).
        processes, process_id: how many there are, and which this is, from 0; with a HOST:PORT.

    Raises:
        ValueError: some of the three are missing, or do not fit.
    """
    if coordinator in (None, AUTO):
        if processes is not None or process_id is not None:
            raise ValueError("--processes and --process-id go with --coordinator HOST:PORT")
        if coordinator == AUTO or has_neighbours(os.environ):
            jax.distributed.initialize()
        return
    if processes is None or process_id is None:
        raise ValueError(f"--coordinator {coordinator} needs --processes N and --process-id I, or write auto instead")
    if not 0 <= process_id < processes:
        raise ValueError(f"--process-id goes from 0 to {processes - 1}, and is {process_id}")
    jax.distributed.initialize(coordinator, processes, process_id)


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


def put_like(value: np.ndarray, old: jax.Array) -> jax.Array:
    """The value on the devices that `old` is on; the same value on all processes."""
    if isinstance(old.sharding, jax.sharding.NamedSharding):
        return jax.make_array_from_callback(value.shape, old.sharding, lambda part: value[part])
    return jax.numpy.asarray(value)


def agreed(decide: Callable[[], T]) -> T:
    """What `decide` returns in the first process, in every process; only there it is called."""
    if jax.process_count() == 1:
        return decide()
    from jax.experimental.multihost_utils import broadcast_one_to_all

    text = np.frombuffer(pickle.dumps(decide()) if is_first() else b"", np.uint8)
    length = int(broadcast_one_to_all(np.int32(len(text))))
    return pickle.loads(broadcast_one_to_all(np.resize(text, length)).tobytes())  # our own bytes, from our own process
