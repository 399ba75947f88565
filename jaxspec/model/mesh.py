"""A mesh of devices.

Users give up to three numbers: `data` shards the batch, `model` the weights (tensor parallelism as in Megatron,
arXiv:1909.08053), `rows` the weights too, and the rows of the KV cache (`split_rows.py`). Attention can be sharded at
most by its heads. So `split` divides the axis `model` into three, for the heads of a given model: devices along `kv`
have different KV heads; devices along `group` share KV heads and have different query heads; devices along `spare`
share query heads too. Vocabulary and MLP are sharded along all three, and along `rows`.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxspec.model.config import LlamaConfig

AXES = ("data", "kv", "group", "spare", "rows")
"""Axes of a model's mesh after `split`; `kv` x `group` x `spare` are the users' axis `model`."""
MOST_ROWS = 8  # every bucket of cache rows is a multiple of it

AnyMesh = Mesh | AbstractMesh  # an AbstractMesh has no devices


def make_mesh(*, data: int = 1, model: int = 1, rows: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with the axes `data`, `model` and `rows`, over `devices` (None: the first of `jax.devices()`).

    Raises:
        ValueError: an axis is below 1, `rows` is not 1, 2, 4 or 8, there are too few devices, or several processes
            would leave a device idle.
    """
    sizes = {"data": data, "model": model, "rows": rows}
    said = ",".join(f"{name}={size}" for name, size in sizes.items() if name != "rows" or size != 1)
    if min(sizes.values()) < 1:
        raise ValueError(f"a mesh needs at least one device along each axis, not {said}")
    if MOST_ROWS % rows:
        raise ValueError(f"rows of the cache can be split over 2, 4 or {MOST_ROWS} devices, not {rows}")
    there, wanted = jax.devices() if devices is None else devices, math.prod(sizes.values())
    if wanted > len(there) or (jax.process_count() > 1 and wanted < len(there)):
        product = f"{'' if jax.process_count() > 1 else 'at most '}{len(there)}"
        raise ValueError(
            f"a mesh of {said} needs {wanted} devices but there are {len(there)}; "
            f"choose numbers whose product is {product}"
        )
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), (AxisType.Auto,) * 3, devices=there)


def parse_mesh(text: str) -> Mesh:
    """The mesh of `data=2,model=4`; an axis that is not given has one device. Raises ValueError."""
    sizes = read_sizes(text)
    return make_mesh(data=sizes["data"], model=sizes["model"], rows=sizes.get("rows", 1))


def read_sizes(text: str) -> dict[str, int]:
    """Sizes of the axes from `data=2,model=4`, and of `rows` if it is given. Raises ValueError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name not in ("data", "model", "rows") or name in sizes or not size.isdecimal():
            raise ValueError(f"--mesh {text!r}: write data=N,model=M or data=N,model=M,rows=R, with whole numbers")
        sizes[name] = int(size)
    return {"data": 1, "model": 1, **sizes}


def split(mesh: Mesh, config: LlamaConfig) -> Mesh:
    """The same devices with the axis `model` split by the heads of a model, into `AXES`."""
    sizes = (mesh.shape["data"], *parts(mesh.shape["model"], config), mesh.shape.get("rows", 1))
    return Mesh(np.asarray(mesh.devices).reshape(sizes), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def parts(model: int, config: LlamaConfig) -> tuple[int, int, int]:
    """Sizes of `kv`, `group` and `spare` that an axis `model` of this size is split into."""
    kv = math.gcd(model, config.num_kv_heads)
    group = math.gcd(model // kv, config.num_heads // config.num_kv_heads)
    return kv, group, model // (kv * group)


def use(mesh: Mesh | None) -> contextlib.AbstractContextManager:
    """A context in which the mesh is current; None: no mesh."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def platform() -> str:
    """The platform that a program traced now will run on, such as `tpu`: the current mesh's, or JAX's default."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def model_size(mesh: AnyMesh) -> int:
    """Devices that a split mesh shards the weights over."""
    return math.prod(mesh.shape[name] for name in AXES[1:])


def shared_heads(mesh: AnyMesh, config: LlamaConfig) -> str | None:
    """A sentence for users if devices of a split mesh replicate KV heads; None if each has heads of its own."""
    copies = mesh.shape["group"] * mesh.shape["spare"]
    if copies == 1:
        return None
    over = f"{config.num_kv_heads} KV heads over {model_size(mesh)} devices"
    said = f"{over}: each KV head is replicated on {copies} of them"
    if mesh.shape["spare"] > 1:
        said += f", and each query head is computed by {mesh.shape['spare']}"
    if MOST_ROWS % (rows := copies * mesh.shape["rows"]) == 0:
        said += f"; --mesh model={mesh.shape['kv']},rows={rows} would split the rows of the cache between these instead"
    return said
