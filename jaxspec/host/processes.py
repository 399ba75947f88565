"""Several processes that run the same program, each with some of the devices: joining them, and what they exchange.

All processes must take the same steps. So values that depend on a clock, a signal or a file of one host must be
broadcast first (`largest`, `broadcast_from_first`). The first process alone prints and writes, into a folder that all
of them see; only of a run's checkpoints does each write its own part (Orbax).
"""

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import distributed  # the store of keys and values that all processes see is not public
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from jaxspec.host import shared_exit

T = TypeVar("T")
AUTO = "auto"
LAST_TO_END = 60  # seconds that a process which is done waits for the others
SILENT = 30  # seconds without a sign of life after which a process counts as dead, and JAX ends the others


def join(
    coordinator: str | None = None, processes: int | None = None, process_id: int | None = None, *, allowed: bool = True
) -> None:
    """Joins the other processes, before anything is computed. Does nothing if there are none, or it was called before.

    Args:
        coordinator: HOST:PORT of the first process; `auto` reads the environment, as does None if that has several
            tasks (a TPU pod, SLURM).
        processes, process_id: their number, and that of this one, from 0; with a HOST:PORT.
        allowed: whether others may be joined.

    Raises:
        ValueError: some of the three are missing, or do not fit, or there are others and none are allowed.
    """
    if not allowed and (coordinator is not None or neighbours(os.environ)):
        raise ValueError(
            "this command runs in one process, on as many devices as that has, and cannot be spread over several hosts"
        )
    _check(coordinator, processes, process_id)
    if coordinator in (None, AUTO):
        if coordinator is None and not neighbours(os.environ):
            return
        coordinator = None  # JAX reads all three from the environment
    if not jax.distributed.is_initialized():
        jax.config.update("jax_enable_preemption_service", False)  # which would swallow SIGTERM
        jax.distributed.initialize(
            coordinator,
            processes,
            process_id,
            heartbeat_timeout_seconds=SILENT,
            shutdown_timeout_seconds=LAST_TO_END,
        )
        if jax.process_count() > 1:
            shared_exit.begin(distributed.global_state.client, jax.process_index(), jax.process_count())


def _check(coordinator: str | None, processes: int | None, process_id: int | None) -> None:
    """Raises ValueError for options that do not fit one another."""
    if coordinator in (None, AUTO):
        if processes is not None or process_id is not None:
            raise ValueError("--processes and --process-id need --coordinator HOST:PORT")
    elif processes is None or process_id is None:
        raise ValueError(f"--coordinator {coordinator} needs --processes N and --process-id I, or write auto instead")
    elif not 0 <= process_id < processes:
        raise ValueError(f"--process-id must be from 0 to {processes - 1}, not {process_id}")


def place(
    coordinator: str | None, processes: int | None, process_id: int | None, environment: Mapping[str, str]
) -> tuple[int, int]:
    """The number of this process, from 0, and that of all, for work in which they need not meet; see `join`."""
    _check(coordinator, processes, process_id)
    if processes is not None and process_id is not None:
        return process_id, processes
    if (found := neighbours(environment)) is None:
        return 0, 1
    if not (number := environment.get(_NUMBER[found[0]], "")).isdecimal():
        raise ValueError(
            f"{found[0]} stands for {found[1]} processes, and {_NUMBER[found[0]]} does not give the number of this "
            "one; name it with --coordinator HOST:PORT --processes N --process-id I"
        )
    return int(number), found[1]


_NUMBER = {"SLURM_STEP_NUM_TASKS": "SLURM_PROCID", "TPU_WORKER_HOSTNAMES": "TPU_WORKER_ID"}  # of this process


def neighbours(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """The variable of SLURM or of a TPU pod that gives several tasks, and their number; None if there is none."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdecimal() and int(tasks) > 1:
        return "SLURM_STEP_NUM_TASKS", int(tasks)
    hosts = environment.get("TPU_WORKER_HOSTNAMES", "").count(",") + 1
    return ("TPU_WORKER_HOSTNAMES", hosts) if hosts > 1 else None


def check_alone(
    environment: Mapping[str, str], command: Sequence[str], missing: Sequence[str] = ("--mesh", "model=N")
) -> None:
    """Raises ValueError if there are other processes, of which each would run the whole command by itself.

    The error repeats the command as typed, program first, with the options of a mesh that are `missing`.
    """
    if (found := neighbours(environment)) is None:
        return
    variable, count = found
    typed = shlex.join([Path(command[0]).name, *command[1:]])
    raise ValueError(
        f"{variable} says that this is one of {count} processes, and without a mesh each would run all of this by "
        f"itself. To share the work run on all of them: {typed} {' '.join(missing)}, where N is the number of all "
        f"their devices. To run on this host alone: env -u {variable} {typed}"
    )


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def fetch(arrays: T) -> T:
    """Collective: gathers arrays, which may be sharded over all hosts, as NumPy arrays to every host."""
    if jax.process_count() == 1:
        return jax.device_get(arrays)
    from jax.experimental.multihost_utils import process_allgather

    whole = lambda leaf: np.asarray(leaf) if leaf.is_fully_addressable else process_allgather(leaf, tiled=True)
    return jax.tree.map(whole, arrays)


def put(value: Any, sharding: Sharding) -> jax.Array:
    """An array with a sharding, from one that all processes have whole, or that is on devices of all of them."""
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return jax.jit(_same, out_shardings=sharding)(value)
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])


def _same(value: jax.Array) -> jax.Array:
    return value


def split_over_hosts(array: np.ndarray) -> np.ndarray | jax.Array:
    """An array that every process has, sharded over them along the first axis that they divide, so that each writes a
    part of it; with one process, the array itself."""
    if (count := jax.process_count()) == 1:
        return array
    ours = {device.process_index: device for device in reversed(jax.devices())}  # the first device of each
    mesh = Mesh(np.array([ours[process] for process in sorted(ours)]), ("host",))
    axis = next((axis for axis, size in enumerate(array.shape) if size % count == 0), None)
    return put(array, NamedSharding(mesh, PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "host")))


def broadcast_text(text: str) -> str:
    """Collective: broadcasts the first process's text to every process."""
    if jax.process_count() == 1:
        return text
    from jax.experimental.multihost_utils import broadcast_one_to_all

    ours = np.frombuffer(text.encode(), np.uint8)
    length = int(broadcast_one_to_all(np.int32(len(ours))))
    return broadcast_one_to_all(np.resize(ours, length)).astype(np.uint8).tobytes().decode()


def broadcast_from_first(work: Callable[[], Any]) -> Any:
    """Calls `work` in the first process only, and returns its result, which must be JSON, in all processes.

    Raises:
        ValueError, RuntimeError: in the other processes, if `work` raised an error in the first one; ValueError for bad
            input and errors of the file system. The first process raises the error itself.
    """
    if jax.process_count() == 1:
        return work()
    if not is_first():
        found, problem, is_input = json.loads(broadcast_text(""))
        if problem is not None:
            raise (ValueError if is_input else RuntimeError)(problem)
        return found
    try:
        result = json.dumps([work(), None, False])
    except Exception as error:  # the others would wait for ever
        broadcast_text(json.dumps([None, str(error), isinstance(error, ValueError | OSError)]))
        raise
    return json.loads(broadcast_text(result))[0]


def largest(number: float) -> float:
    """Collective: the largest of the processes' numbers, such as the seconds that each has measured."""
    if jax.process_count() == 1:
        return number
    from jax.experimental.multihost_utils import process_allgather

    # As bytes, for without `jax_enable_x64` a float64 would be rounded.
    theirs = process_allgather(np.frombuffer(np.float64(number).tobytes(), np.uint8))
    return float(np.ascontiguousarray(theirs).view(np.float64).max())


def wait() -> None:
    """Collective: waits for all processes. After it, the others can read files that one has written before."""
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import sync_global_devices

        sync_global_devices("jaxspec")
