"""Options of the TPU compiler for the loop and for prefill, chosen by the compiler's own estimates.

`docs/compiled.md` shows what they change. Nothing has run on a TPU yet: `benchmarks/accelerator.py` measures, and the
environment variable JAXSPEC_TPU_OPTIONS=0 turns them off, to compare.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.host.terminal import say
from jaxspec.model import backend

LOOP = {
    # A round is bound by reading weights. These make the compiler copy more of them into fast memory ahead of their
    # products: it weighs copies by the products' instructions, copies each array whole, and takes copies to be three
    # times as fast as it otherwise would.
    "xla_msa_use_bundle_aware_cost_model": "true",
    "xla_tpu_sliced_prefetch_max_slices": "0",
    "xla_tpu_async_copy_bandwidth_scaling_factor": "3",
    "xla_tpu_order_dot_after_layout": "false",  # a lower estimate, together with the others
    "xla_tpu_scoped_vmem_limit_kib": "24576",  # fast memory for the tiles of one product
}
PREFILL = {"xla_tpu_scoped_vmem_limit_kib": "49152"}


@dataclasses.dataclass(frozen=True)
class Jitted:
    """A function compiled with options on TPUs, and without them on other platforms. It is used like `jax.jit`'s."""

    usual: Any
    on_tpu: Any

    @property
    def here(self) -> Any:
        """The jitted function for the platform that a program traced now will run on."""
        wanted = backend.has_tpu_compiler() and os.environ.get("JAXSPEC_TPU_OPTIONS") != "0"
        return self.on_tpu if wanted and understood(jax.sharding.get_mesh()) else self.usual

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.here(*given, **named)

    def trace(self, *given: Any, **named: Any) -> Any:
        return self.here.trace(*given, **named)

    def lower(self, *given: Any, **named: Any) -> Any:
        return self.here.lower(*given, **named)

    def clear_cache(self) -> None:
        self.usual.clear_cache()
        self.on_tpu.clear_cache()


def jit(options: Mapping[str, str], **settings: Any) -> Callable[[Callable[..., Any]], Any]:
    """Like `jax.jit` with these settings, and with `options` for the compiler on TPUs."""

    def decorate(function: Callable[..., Any]) -> Jitted:
        return Jitted(jax.jit(function, **settings), jax.jit(function, compiler_options=dict(options), **settings))

    return decorate


@functools.cache
def understood(mesh: Any) -> bool:
    """Whether the installed compiler has all of the options. It warns if not: other versions may lack some.

    Args:
        mesh: the current one, whose devices, or else the default device, the answer is for.
    """
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=LOOP | PREFILL).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        say(f"the installed TPU compiler lacks an option that jaxspec uses, so none is used: {error}")
        return False
    return True
