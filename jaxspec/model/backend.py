"""What differs between CPUs, GPUs and TPUs in models and decoding, each with its reason.

Estimates are those of XLA's compiler for TPUs or GPUs. What no device has confirmed yet, `benchmarks/accelerator.py`
measures.
"""

import contextlib
import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxspec.host.environment import default_device

# On a CPU every node costs time, and each size takes seconds to compile. So the sizes are further apart above 16.
CPU_TREE_SIZES = (1, 2, 6, 10, 16, 32, 64)
ACCELERATOR_TREE_SIZES = (8, 16, 32, 64)
TREE_SIZES_BY_COST = (4, 5, 7, 12, 16, 32, 64)  # chains of 3, 4 and 6 drafts; nodes cost time in large batches
CPU_CHUNKS = (32, 128)  # larger products are not faster on a CPU, and padding costs time
ACCELERATOR_CHUNKS = (32, 128, 512)

TPU_LOOP_OPTIONS = {
    # A round is bound by reading weights. By XLA's estimates these options make the compiler copy more of them into
    # fast memory before their products: it weighs copies by the products' instructions, copies each array whole, and
    # takes copies to be three times as fast as it otherwise would.
    "xla_msa_use_bundle_aware_cost_model": "true",
    "xla_tpu_sliced_prefetch_max_slices": "0",
    "xla_tpu_async_copy_bandwidth_scaling_factor": "3",
    "xla_tpu_order_dot_after_layout": "false",  # a lower estimate, together with the others
    "xla_tpu_scoped_vmem_limit_kib": "24576",  # fast memory for the tiles of one product; alone a higher estimate
}
TPU_PREFILL_OPTIONS = {"xla_tpu_scoped_vmem_limit_kib": "49152"}
"""Options of the TPU compiler for `loop.decode` and for prefill (`docs/compiled.md`).

They are off: no TPU has confirmed them, and an estimate cannot, because one of them changes what the compiler assumes
about the hardware.
"""


def platform() -> str:
    """The platform that a program traced now will run on, such as `tpu`: the current mesh's, or JAX's default."""
    mesh = current_mesh()
    return (default_device() if mesh is None else mesh.devices.flat[0]).platform


_mesh: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


@contextlib.contextmanager
def use_mesh(mesh: Mesh | None) -> Iterator[None]:
    """A context in which the mesh is current; None: that of an outer `use_mesh`, and not one that `jax.set_mesh` set.

    The mesh is also stored in this module, because JAX 0.7.2 can set the mesh but has no function that returns it.
    """
    if mesh is None:
        foreign = current_mesh() is None and not jax.sharding.get_abstract_mesh().empty
        with jax.set_mesh(Mesh(np.empty((), object), ())) if foreign else contextlib.nullcontext():
            yield
        return
    token = _mesh.set(mesh)
    try:
        with jax.set_mesh(mesh):
            yield
    finally:
        _mesh.reset(token)


def current_mesh() -> Mesh | None:
    """The mesh of the innermost `use_mesh`."""
    return _mesh.get()


_no_device: ContextVar[bool] = ContextVar("no_device", default=False)


@contextlib.contextmanager
def no_device() -> Iterator[None]:
    """A context for tracing programs to count their operations and bytes, on no particular platform (`planning`)."""
    token = _no_device.set(True)
    try:
        yield
    finally:
        _no_device.reset(token)


def default_dtype() -> str:
    """The dtype of weights and computation, unless the user names another.

    On a CPU float32, in which greedy text is exactly plain decoding's; bfloat16 is faster for trees on CPUs with AMX.
    GPUs before compute capability 8.0, as Colab's T4, have no units for bfloat16.
    """
    if platform() == "cpu":
        return "float32"
    return "float16" if platform() == "gpu" and _compute_capability() < 8.0 else "bfloat16"


def _compute_capability() -> float:
    """NVIDIA's compute capability of the default device, such as 7.5; infinite for GPUs of others."""
    capability = str(default_device().compute_capability)  # AMD has a name here, such as gfx942
    return float(capability) if re.fullmatch(r"[0-9.]+", capability) else math.inf


def time_grows_with_tokens() -> bool:
    """Whether each token of a forward costs time. On accelerators, reading the weights takes longer than few tokens."""
    return platform() == "cpu"


def tree_sizes(by_cost: bool = False) -> tuple[int, ...]:
    """The numbers of nodes that verification is compiled for; `by_cost`: of methods that choose them by their costs."""
    if time_grows_with_tokens():
        return CPU_TREE_SIZES
    return TREE_SIZES_BY_COST if by_cost else ACCELERATOR_TREE_SIZES


def prefill_chunks() -> tuple[int, ...]:
    """Tokens of a chunk of prefill, ascending."""
    return CPU_CHUNKS if time_grows_with_tokens() else ACCELERATOR_CHUNKS


def layers_together() -> int:
    """Most layers in one program of prefill. Accelerators read a layer's weights while computing the one before."""
    return 1 if platform() == "cpu" else 8


def uses_eigen(dtype: Any) -> bool:
    """Whether the loop's products of several rows are computed by Eigen, not by YNNPACK as jaxlib 0.10 does by default.

    In float32 on CPUs with AVX2 and without AVX-512, Eigen is faster for 8 nodes and more. In half precision it is
    slower, and YNNPACK has kernels for AVX-512.
    """
    on_one_cpu = platform() == "cpu" and current_mesh() is None and not _no_device.get()
    return on_one_cpu and dtype == jnp.float32 and _has_avx2_only()


@functools.cache
def _has_avx2_only() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.exists() else set()
    return version("jaxlib").startswith("0.10.") and "avx2" in flags and "avx512f" not in flags


def fewest_rows_of_a_table(dtype: Any) -> int:
    """The rows that a product with a transposed table of embeddings is padded to, if it has more than one.

    XLA does not use Eigen for 2 to 7 rows of such a product. With a tied LM head, a forward over 5 nodes would then
    take longer than one over 8.
    """
    return 8 if uses_eigen(dtype) else 1


def single_row_is_slow(dtype: Any) -> bool:
    """Whether a product with one row is slower than one with two.

    On a TPU, XLA computes it on the vector unit, and estimates a longer time than for two rows. On a GPU, XLA writes
    kernel times row to memory before it sums. On a CPU, XLA converts the kernel to float32 for one row in bfloat16. For
    more rows it calls a kernel that may use the CPU's matrix unit (AMX).
    """
    return platform() != "cpu" or (dtype == jnp.bfloat16 and not _no_device.get())


def cache_dtype(dtype: Any) -> Any:
    """The dtype of caches and nodes of a model whose weights have `dtype`; their values are rounded to `dtype` first.

    To write one row in half precision, XLA for CPUs converts the whole cache to float32 and back.
    """
    return jnp.float32 if platform() == "cpu" and not _no_device.get() else dtype


def gradient_dtype(dtype: Any) -> Any:
    """The dtype in which gradients of a product of `dtype` are summed, before they are rounded to `dtype`.

    Only with float32 results does XLA for CPUs use the matrix unit for bfloat16. On accelerators float32 would double
    the messages of a mesh.
    """
    return jnp.float32 if platform() == "cpu" else dtype


def gathers_table_for_one_token() -> bool:
    """Whether XLA gathers a sharded table of embeddings on every device for one token, unlike for two: on GPUs."""
    return platform() == "gpu" and not jax.sharding.get_abstract_mesh().empty


def fuses_products() -> bool:
    """Whether XLA fuses a product with its uses, and for that transposes the kernel in every round: on TPUs."""
    return platform() == "tpu"


def has_attention_kernel() -> bool:
    """Whether `attention_kernel` can be compiled. It is written for TPUs."""
    return platform() == "tpu"


def uses_cudnn() -> bool:
    """Whether prefill uses cuDNN's attention: on GPUs, if JAXSPEC_ATTENTION=cudnn. Where it pays is not measured."""
    return platform() == "gpu" and os.environ.get("JAXSPEC_ATTENTION") == "cudnn"


def loops_over_updates() -> bool:
    """Whether one update at a different place in each row of a batch becomes a loop: on TPUs.

    Separate updates of the rows are then faster, as XLA estimates.
    """
    return platform() == "tpu"


def sorts_slowly() -> bool:
    """Whether `jax.lax.top_k` sorts all values slowly, as on TPUs: a bitonic sort of 8,016 values has 91 passes."""
    return platform() == "tpu"


def threshold_bits() -> int:
    """Bits of a threshold that one pass over a vocabulary finds, by 2^bits - 1 sums (`decoding/sampling.py`)."""
    # On a CPU every sum costs time. On accelerators a pass costs more than its sums, and on a mesh it is a message.
    return 1 if platform() == "cpu" else 8


def has_tpu_options() -> bool:
    """Whether the user turned on the options above: the environment variable JAXSPEC_TPU_OPTIONS is 1."""
    return os.environ.get("JAXSPEC_TPU_OPTIONS") == "1"


def chosen_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """The `compiler_options` of a program: None unless the user turned options for TPUs on before importing jaxspec."""
    return dict(options) if has_tpu_options() else None


class Jitted:
    """A jitted function of rounds, with the compiler options for the platform and the dtype of the target's weights.

    Args:
        function: the function to jit.
        dtype_of: the dtype of the target's weights, from the function's positional arguments.
        options: compiler options for TPUs, as in `chosen_options`.
        settings: further arguments of `jax.jit`.
    """

    def __init__(
        self, function: Callable[..., Any], dtype_of: Callable[..., Any], options: Mapping[str, str], **settings: Any
    ):
        functools.update_wrapper(self, function)
        by_eigen = {"xla_cpu_experimental_ynn_fusion_type": ""}
        self._dtype_of = dtype_of
        self._usual: Any = jax.jit(function, compiler_options=chosen_options(options), **settings)
        self._by_eigen: Any = jax.jit(function, compiler_options=by_eigen, **settings)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._for(arguments)(*arguments, **named)

    def lower(self, *arguments: Any, **named: Any) -> Any:
        return self._for(arguments).lower(*arguments, **named)

    def trace(self, *arguments: Any, **named: Any) -> Any:
        return self._for(arguments).trace(*arguments, **named)

    def _for(self, arguments: tuple[Any, ...]) -> Any:
        return self._by_eigen if uses_eigen(self._dtype_of(*arguments)) else self._usual
