"""Several processes that run the same program, each with some of the devices: what they exchange.

All processes must take the same steps. So values that depend on a clock, a signal or a file of one host must be
broadcast first (`largest`, `broadcast_from_first`). The first process alone prints and writes, into a folder that all
of them see; only of a run's checkpoints does each write its own part (Orbax).
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

T = TypeVar("T")


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def fetch(arrays: T) -> T:
    """Collective: gathers arrays, which may be sharded over all hosts, as NumPy arrays to every host."""
    if jax.process_count() == 1:
        return jax.device_get(arrays)
    gather = lambda leaf: multihost_utils.process_allgather(leaf, tiled=True)
    return jax.tree.map(lambda leaf: np.asarray(leaf) if leaf.is_fully_addressable else gather(leaf), arrays)


def put(value: Any, sharding: Sharding) -> jax.Array:
    """An array with a sharding, from one that all processes have whole, or that is on devices of all of them."""
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return jax.jit(_same, out_shardings=sharding)(value)  # `device_put` takes a NamedSharding only
    host = np.asarray(value)  # `device_put` would compare those of all processes
    return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])


def _same(value: jax.Array) -> jax.Array:
    return value


def split_over_hosts(array: np.ndarray) -> np.ndarray | jax.Array:
    """An array that all processes have, sharded over them along the first axis that they divide: each saves a part."""
    if (count := jax.process_count()) == 1:
        return array
    ours = {device.process_index: device for device in reversed(jax.devices())}  # the first device of each
    mesh = Mesh(np.array([ours[process] for process in sorted(ours)]), ("host",))
    axis = next((axis for axis, size in enumerate(array.shape) if size % count == 0), None)
    return put(array, NamedSharding(mesh, PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "host")))


def broadcast_text(text: str) -> str:
    """Collective: broadcasts the first process's text to every process."""
    ours = np.frombuffer(text.encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(ours))))
    return multihost_utils.broadcast_one_to_all(np.resize(ours, length)).astype(np.uint8).tobytes().decode()


def broadcast_from_first(work: Callable[[], Any]) -> Any:
    """Calls `work` in the first process only, and returns its result, which must be JSON, in all processes.

    The first process raises an error of `work` itself; the others raise ValueError for bad input and errors of the file
    system, and RuntimeError for other errors.
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
    # As bytes, for without `jax_enable_x64` a float64 would be rounded.
    theirs = multihost_utils.process_allgather(np.frombuffer(np.float64(number).tobytes(), np.uint8))
    return float(np.ascontiguousarray(theirs).view(np.float64).max())


def wait() -> None:
    """Collective: waits for all processes. After it, the others can read files that one has written before."""
    multihost_utils.sync_global_devices("jaxspec")
