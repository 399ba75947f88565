"""The smallest modules: linear layers and RMSNorm. All products of activations and weights are here.

In bfloat16 and float16, products have float32 results, and so have all operations between two products: sums, norms,
activation functions, the residual stream. A value is rounded where it enters a product or a cache, and nowhere else.
Each rounding is a place where two forwards of different shape can differ, so there are few, and the compiler does not
choose them. There is one exception: on a mesh, devices send each other their parts of a sum in bfloat16 if the model
has it, because float32 messages would take twice as long.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxspec.model import backend, quantization, sharding
from jaxspec.model.quantization import QuantizedKernel


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x²) + eps) · scale (arXiv:1910.07467), computed in float32 and rounded to the dtype of the scale.

    Args:
        width: of x's last axis.
        axis: the logical axis of the scale; None: it is never sharded.
    """

    def __init__(self, width: int, eps: float, dtype: jnp.dtype, axis: str | None = "embed"):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), dtype), axes=(axis,))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        return self.in_float32(x).astype(self.dtype)

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the scale: that of the model's weights and of the inputs of its products."""
        return self.scale.dtype

    def in_float32(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The same, float32."""
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return self.scale[...].astype(jnp.float32) * x


class Linear(nnx.Module):
    """x @ kernel + bias, float32; kernel [in, out], quantised or not, bias [out] or None.

    The kernel is converted to the dtype of x. Stacked layers, as in `llama.MixtureOfExperts`, have one more axis in
    front of every array.
    """

    kernel: Any  # an nnx.Param, or a QuantizedKernel

    def __init__(self, rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], *, bias: bool, dtype: jnp.dtype):
        scale = 1 / math.sqrt(shape[-2])
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), shape, dtype) * jnp.asarray(scale, dtype), axes=axes)
        at = (*range(len(shape) - 2), -1)
        of_bias = lambda every: tuple(every[i] for i in at)
        self.bias = nnx.Param(jnp.zeros(of_bias(shape), dtype), axes=of_bias(axes)) if bias else None
        self.inputs = axes[-2]

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        y = multiply_padded(x, self.multiply)
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)

    def multiply(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        """x @ kernel. Accelerators fuse the conversion of a quantised kernel's integers into the product.

        Integers and scales of groups are multiplied in float32: in bfloat16, XLA for TPUs would write the whole
        dequantised kernel to memory.
        """
        sent = x.dtype == jnp.bfloat16 and sharding.sharded_axes(self.inputs, x.shape[-1])
        summed = jnp.bfloat16 if sent else jnp.float32
        if not isinstance(self.kernel, QuantizedKernel):
            return product(x, self.kernel[...].astype(x.dtype), summed)
        values, scale = self.kernel.values[...], self.kernel.scale[...]
        if scale.shape[-2] == 1:
            return product(x, values.astype(x.dtype), summed) * scale[0]
        return product(x, quantization.to_float(values, scale).astype(x.dtype), summed)


def multiply_padded(
    x: Float[Array, "*B I"], multiply: Callable[[Float[Array, "*C I"]], Float[Array, "*C O"]], fewest: int = 1
) -> Float[Array, "*B O"]:
    """multiply(x), where x is padded with rows of zeros if that is faster: a single row, or several below `fewest`."""
    count = math.prod(x.shape[:-1])
    padded = max(count, fewest) if count > 1 else 2 if backend.single_row_is_slow(x.dtype) else 1
    if padded == count:
        return multiply(x)
    rows = jnp.pad(x.reshape(count, x.shape[-1]), [(0, padded - count), (0, 0)])
    return multiply(rows)[:count].reshape(*x.shape[:-1], -1)


def fusion_barrier(x: Float[Array, "*B I"]) -> Float[Array, "*B I"]:
    """The product x, behind an optimisation barrier if XLA would otherwise fuse it with the operations that use it."""
    return jax.lax.optimization_barrier(x) if backend.fuses_products() else x


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: Float[Array, "*B I"], kernel: Float[Array, "I O"], summed: Any = jnp.float32) -> Float[Array, "*B O"]:
    """x @ kernel, float32, with a custom gradient: on CPUs JAX's own is slower for the kernel's gradient.

    The gradients have the dtypes of x and kernel. `summed` is the dtype in which devices send each other parts of the
    sums, if the axis I is sharded.
    """
    return jnp.matmul(x, kernel, preferred_element_type=summed).astype(jnp.float32)


Factors = tuple[Float[Array, "*B I"], Float[Array, "I O"]]


def _product_forward(
    x: Float[Array, "*B I"], kernel: Float[Array, "I O"], summed: Any
) -> tuple[Float[Array, "*B O"], Factors]:
    return product(x, kernel, summed), (x, kernel)


def _product_backward(summed: Any, inputs: Factors, slope: Float[Array, "*B O"]) -> Factors:
    x, kernel = inputs
    slope = slope.astype(x.dtype)
    flat = lambda y: y.reshape(-1, y.shape[-1])
    multiply = lambda left, right: jnp.matmul(left, right, preferred_element_type=backend.gradient_dtype(x.dtype))
    return multiply(slope, kernel.T).astype(x.dtype), multiply(flat(slope).T, flat(x)).T.astype(kernel.dtype)


product.defvjp(_product_forward, _product_backward)
