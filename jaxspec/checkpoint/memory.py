"""How much memory a model needs, and whether a device has it."""

import math
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from rich import filesize

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.parameters import abstract, module_to_dict
from jaxspec.host.environment import default_device
from jaxspec.model.config import LlamaConfig
from jaxspec.model.quantization import is_quantized, leaf_bytes
from jaxspec.model.sharding import device_bytes, place


def required_bytes(config: LlamaConfig, dtype: Any, quantize: str | None = None) -> int:
    """Bytes on an accelerator of all parameters, from their shapes: floats in `dtype`, kernels quantised if wanted."""
    leaves = module_to_dict(abstract(config, quantize)).items()
    return sum(leaf_bytes(leaf.shape, leaf.dtype if is_quantized(name) else dtype) for name, leaf in leaves)


def parameter_count(config: LlamaConfig) -> int:
    """Number of parameters; a tied embedding counts once."""
    return sum(math.prod(leaf.shape) for leaf in module_to_dict(abstract(config)).values())


def available_bytes(device: Any) -> int:
    """Free memory of a device; the host's for a CPU."""
    if device.platform != "cpu" and (stats := device.memory_stats()):
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_fits(config: LlamaConfig, dtype: Any, quantize: str | None = None, mesh: Mesh | None = None) -> None:
    """Raises CheckpointError where parameters exceed the default device's free memory, or parts a split mesh's."""
    if mesh is None:
        device, needed = default_device(), required_bytes(config, dtype, quantize)
    else:
        device, needed = mesh.local_devices[0], device_bytes(place(abstract(config, quantize), mesh, dtype=dtype))
    if needed <= (free := available_bytes(device)):
        return
    size, there = filesize.decimal(needed), f"{device.platform}:{device.id} has {filesize.decimal(free)} free"
    if mesh is not None:
        raise CheckpointError(
            f"each device needs {size} for its part of the model and {there}; choose a larger axis `model` of the "
            "mesh, or a smaller model or dtype"
        )
    each = f"x {jnp.dtype(dtype).itemsize} bytes" if quantize is None else f"as {quantize}"
    raise CheckpointError(
        f"the model needs {size} ({parameter_count(config):,} parameters {each} = {size}) and {there}; choose a "
        "smaller model, dtype, batch or length"
    )
