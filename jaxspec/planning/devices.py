"""Absent chips, as devices for XLA's compilers only, and the mesh of a model on them."""

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from jaxspec.host.jax_environment import expect_no_chip
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig
from jaxspec.model.sharding import AXES, AnyMesh, make_mesh, model_axis_sizes, split_mesh
from jaxspec.planning.chips import GPUS, Slice

PLUGIN, NVCC = "jax_plugins.xla_cuda12", "nvidia.cuda_nvcc"

# XLA's description of a GPU in text format; openxla/xla's issue 25919 has an example for an H100. The numbers are from
# NVIDIA's data sheets, and from the table of compute capabilities in the CUDA C++ programming guide.
_THREADS = "threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048"
_GRID = "block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535"
_MEMORY = "shared_memory_per_block: 49152 registers_per_core_limit: 65536 registers_per_block_limit: 65536"
_HOPPER = (
    "core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 shared_memory_per_core: 233472 "
    "shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }"
)
_CHIPS = {
    "h100-80g": f"{_HOPPER} l2_cache_size: 52428800 memory_bandwidth: 3352320000000 device_memory_size: 84929347584",
    "h200-141g": f"{_HOPPER} l2_cache_size: 62914560 memory_bandwidth: 4800000000000 device_memory_size: 150754820096",
    "a100-80g": (
        "core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41 l2_cache_size: 41943040 "
        "memory_bandwidth: 2039000000000 device_memory_size: 84929347584 shared_memory_per_core: 167936 "
        "shared_memory_per_block_optin: 166912 cuda_compute_capability { major: 8 }"
    ),
}
_VERSIONS = "dnn_version_info { major: 9 minor: 7 } runtime_version { major: 12 minor: 8 patch: 0 }"


def can_compile() -> bool:
    """Whether the GPU compiler is installed: the extra plan-cuda."""
    try:
        return all(importlib.util.find_spec(name) for name in (PLUGIN, NVCC))
    except ModuleNotFoundError:  # the package before the dot is missing
        return False


def gpus(where: Slice) -> Sequence[Any]:
    """The GPUs of one machine, as devices for the compiler only. Sets XLA_FLAGS and PATH before JAX begins."""
    from jax.experimental import topologies

    spec = importlib.util.find_spec(NVCC)
    assert spec is not None and spec.submodule_search_locations, "requires `can_compile`"
    folder = Path(next(iter(spec.submodule_search_locations)))
    wanted = (
        f"--xla_gpu_cuda_data_dir={folder}",
        "--xla_gpu_autotune_level=0",  # autotuning would time kernels on a GPU
        "--xla_gpu_enable_triton_gemm=false",
    )
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *wanted)).strip()
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    topology = f"1x1x{where.chips}"  # slices, hosts per slice, GPUs per host
    return topologies.get_topology_desc(platform="cuda", target_config=described(where.kind), topology=topology).devices


def described(kind: str) -> str:
    """XLA's description of a GPU, one of `chips.CHIPS`: a `GpuTargetConfigProto` in text format."""
    return (
        f'gpu_device_info {{ {_THREADS} {_GRID} {_MEMORY} {_CHIPS[kind]} }} platform_name: "CUDA" {_VERSIONS} '
        f'device_description_str: "{GPUS[kind]}"'
    )


class NoCompilerError(Exception):
    """The TPU compiler, libtpu, is not installed, or too old for the installed JAX."""


def mesh_on(where: Slice, config: LlamaConfig, data: int, model: int, rows: int = 1) -> AnyMesh:
    """The mesh of a model on these chips; abstract if the compiler does not support them, or there is none for GPUs.

    Raises NoCompilerError for TPUs if libtpu is not installed or too old; ValueError for an unknown TPU topology.
    """
    if where.is_tpu or can_compile():
        try:
            devices = tpus(where) if where.is_tpu else gpus(where)
            return split_mesh(make_mesh(data=data, model=model, rows=rows, devices=devices), config)
        except ValueError as error:
            if "external name" not in str(error):
                raise
            say(f"the installed libtpu cannot compile for {where.kind}, so all values come from sizes and data sheets")
    return abstract_mesh((data, *model_axis_sizes(model, config), rows))


def tpus(where: Slice) -> Sequence[Any]:
    """The TPUs of a slice, as devices for the compiler only. Raises as `mesh_on`."""
    _check_libtpu()
    from jax.experimental import topologies

    expect_no_chip()
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no chip is used, so no lock is needed
    name = str(where).replace("v7x", "tpu7x")  # as libtpu calls it
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"{where} is not a TPU slice: {' '.join(str(error).split())}") from error


def _check_libtpu() -> None:
    """Raises NoCompilerError if libtpu is missing, or so old that JAX would end the process without a message."""
    if importlib.util.find_spec("libtpu") is None:
        raise NoCompilerError(
            "planning needs the TPU compiler (but no TPU), which is not installed: pip install 'jax[tpu]'"
        )
    numbers = lambda version: [int(part) for part in re.findall(r"\d+", version)]
    found, jax_version = importlib.metadata.version("libtpu"), importlib.metadata.version("jax")
    needed = re.search(r"libtpu==([\d.]+\d)", " ".join(importlib.metadata.requires("jax") or ()))
    if needed and numbers(found) < numbers(needed[1]):
        raise NoCompilerError(
            f"libtpu {found} is too old for jax {jax_version}, which needs {needed[1]}: "
            f"pip install 'jax[tpu]=={jax_version}'"
        )


def abstract_mesh(sizes: tuple[int, ...] = (1,) * len(AXES)) -> AbstractMesh:
    """A mesh without devices; by default of one chip."""
    return AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))
