"""Weight-only quantisation of a target: kernels become int8 or int4 with float32 scales, by Qwix.

These stay floats: the embedding (only one row is read per token), norms, biases, routers, and the drafter's weights.
The LM head is int8 in both cases, because its rounding directly changes the logits. int8 has one scale per output
channel, int4 one per gcd(inputs, `GROUP`) inputs of an output channel. int4 raises the loss more than int8.

Activations stay floats. A quantised target is simply another target: lossless then means equal to its own plain
decoding.
"""

import math
from collections.abc import Collection, Mapping
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

KINDS = ("int8", "int4")
GROUP = 128
LM_HEAD = "head.kernel"

M = TypeVar("M", bound=nnx.Module)


class QuantizedKernel(nnx.Module):
    """kernel ≈ values × scale; values [*experts I O] are integers, scale [*experts groups O] is float32."""

    def __init__(self, values: nnx.Param, scale: nnx.Param):
        self.values, self.scale = values, scale


def kind_of(name: str, how: str) -> str | None:
    """Integer dtype of a parameter, by its dotted name, in a target quantised to `how`; None: it stays a float."""
    *_, owner, last = ("", *name.split("."))
    if last != "kernel" or owner == "router":
        return None
    return "int8" if name.endswith(LM_HEAD) else how


def group_size(kind: str, inputs: int) -> int:
    """Number of inputs of an output channel that share a scale."""
    return math.gcd(inputs, GROUP) if kind == "int4" else inputs


def is_quantized(name: str) -> bool:
    """Whether a dotted name is part of a quantised kernel. Such an array keeps its dtype, whatever the model's."""
    return name.endswith((".kernel.values", ".kernel.scale"))


def whole_name(name: str) -> str:
    """The dotted name of a parameter, without `.values` or `.scale` if it is quantised."""
    return name.removesuffix(".values").removesuffix(".scale") if is_quantized(name) else name


def pack(name: str, array: Any, how: str | None) -> dict[str, Any]:
    """A parameter by its dotted name; its values and scale instead, if a target quantised to `how` quantises it."""
    kind = None if how is None else kind_of(name, how)
    if kind is None:
        return {name: array}
    values, scale = to_integers(jnp.asarray(array), kind)
    return {f"{name}.values": values, f"{name}.scale": scale}


@partial(jax.jit, static_argnames="kind")
def to_integers(
    kernel: Float[Array, "*experts I O"], kind: str
) -> tuple[Int[Array, "*experts I O"], Float[Array, "*experts groups O"]]:
    """Values and scales of a kernel. A scale is the largest absolute value in its group over the largest integer."""
    inputs = kernel.ndim - 2
    channels = tuple(axis for axis in range(kernel.ndim) if axis != inputs)
    tiles = {inputs: group_size(kind, kernel.shape[inputs])} if kind == "int4" else {}
    array = qwix().quantize(kernel.astype(jnp.float32), jnp.dtype(kind), channelwise_axes=channels, tiled_axes=tiles)
    return array.qvalue, array.scale


def to_float(
    values: Int[Array, "*experts I O"], scale: Float[Array, "*experts groups O"]
) -> Float[Array, "*experts I O"]:
    """The dequantised kernel, float32."""
    return qwix().dequantize(qwix().QArray(values, scale.astype(jnp.float32)))


def quantized(model: M, how: str) -> M:
    """The same model with its kernels quantised. Works on abstract values too, under `jax.eval_shape`."""
    model = nnx.clone(model)
    modules: list[tuple[Any, Any]] = list(nnx.iter_modules(model))
    for path, module in modules:
        kernel = vars(module).get("kernel")
        kind = kind_of(".".join(map(str, (*path, "kernel"))), how)
        if not isinstance(kernel, nnx.Param) or kind is None:
            continue
        values, scale = to_integers(kernel[...], kind)
        *experts, inputs, outputs = kernel.get_metadata()["axes"]
        groups = inputs if scale.shape[-2] > 1 else None  # a single group is replicated
        module.kernel = QuantizedKernel(
            nnx.Param(values, axes=(*experts, inputs, outputs)), nnx.Param(scale, axes=(*experts, groups, outputs))
        )
    return model


def dense(params: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Parameters by their dotted names, as floats: the quantised ones in `params` are dequantised."""
    one = lambda name: params[name] if name in params else to_float(params[f"{name}.values"], params[f"{name}.scale"])
    return {name: one(name) for name in names}


def leaf_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Bytes of an array on an accelerator, where two int4 share a byte."""
    known = dtype if jnp.issubdtype(dtype, jax.dtypes.extended) else jnp.dtype(dtype)  # random keys are extended
    bits = 4 if known == jnp.int4 else 8 * known.itemsize
    return math.prod(shape) * bits // 8


def check(how: str | None) -> None:
    """Raises ValueError if `how` is not in `KINDS`, or Qwix is not installed."""
    if how is None:
        return
    if how not in KINDS:
        raise ValueError(f"weights can be quantised to {' or '.join(KINDS)}, not {how!r}")
    qwix()


def qwix() -> ModuleType:
    """The module of the library Qwix. Raises ValueError if it is not installed."""
    try:
        import qwix
    except ImportError as error:
        raise ValueError("quantised weights need Qwix, which is not installed: pip install qwix") from error
    return qwix
