"""The smallest modules: linear layers and RMSNorm. All products of activations and weights are here."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxspec.model import backend, quantization
from jaxspec.model.quantization import QuantizedKernel


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x²) + eps) · scale (arXiv:1910.07467), computed in float32 and returned in the dtype of x.

    Args:
        width: of x's last axis.
        axis: the logical axis of the scale; None: it is never sharded.
    """

    def __init__(self, width: int, eps: float, dtype: jnp.dtype, axis: str | None = "embed"):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), dtype), axes=(axis,))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (self.scale[...].astype(x.dtype) * wide.astype(x.dtype)).astype(x.dtype)


class Linear(nnx.Module):
    """x @ kernel + bias in the dtype of x; kernel [in, out], quantised or not, bias [out] or None.

    Stacked layers, as in a mixture of experts, have one more axis in front of every array (`mlp.py`).
    """

    kernel: Any  # an nnx.Param, or a QuantizedKernel

    def __init__(self, rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], *, bias: bool, dtype: jnp.dtype):
        scale = 1 / math.sqrt(shape[-2])
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), shape, dtype) * jnp.asarray(scale, dtype), axes=axes)
        at = (*range(len(shape) - 2), -1)

        def of_bias(every):
            return tuple(every[i] for i in at)

        self.bias = nnx.Param(jnp.zeros(of_bias(shape), dtype), axes=of_bias(axes)) if bias else None

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        kernel = self.kernel
        quantized = isinstance(kernel, QuantizedKernel)
        multiply = quantization.product if quantized else lambda x, kernel: product(x, kernel[...].astype(x.dtype))
        y = pad_single_row(x, lambda x: multiply(x, kernel))
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


def pad_single_row(
    x: Float[Array, "*B I"], multiply: Callable[[Float[Array, "*C I"]], Float[Array, "*C O"]]
) -> Float[Array, "*B O"]:
    """multiply(x); a single row is padded with a row of zeros where two rows are faster than one."""
    if math.prod(x.shape[:-1]) > 1 or not backend.single_row_is_slow():
        return multiply(x)
    two = jnp.pad(x.reshape(1, x.shape[-1]), [(0, 1), (0, 0)])
    return multiply(two)[:1].reshape(*x.shape[:-1], -1)


def fusion_barrier(x: Float[Array, "*B I"]) -> Float[Array, "*B I"]:
    """The product x itself, behind an optimisation barrier where XLA would fuse it with the operations that use it."""
    return jax.lax.optimization_barrier(x) if backend.fuses_products() else x


@jax.custom_vjp
def product(x: Float[Array, "*B I"], kernel: Float[Array, "I O"]) -> Float[Array, "*B O"]:
    """x @ kernel, with a custom gradient: on CPUs JAX's own takes 1.5 times as long for the kernel's gradient."""
    return x @ kernel


Factors = tuple[Float[Array, "*B I"], Float[Array, "I O"]]


def _product_forward(x: Float[Array, "*B I"], kernel: Float[Array, "I O"]) -> tuple[Float[Array, "*B O"], Factors]:
    return x @ kernel, (x, kernel)


def _product_backward(inputs: Factors, slope: Float[Array, "*B O"]) -> Factors:
    x, kernel = inputs

    def flat(y):
        return y.reshape(-1, y.shape[-1])

    return slope @ kernel.T, (flat(slope).T @ flat(x)).T


product.defvjp(_product_forward, _product_backward)
