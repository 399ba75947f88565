"""Beta posteriors of Thompson sampling, by what a round compared (EESD, arXiv:2406.03853, §3.3)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxspec.decoding.controller import Controller
from jaxspec.decoding.sampling import fold

BETA_FLOOR = 0.01  # of alpha and beta: one reading of the paper can decrease alpha, and a Beta needs both above 0


def compared(accepted: Int[Array, " B"], levels: Int[Array, " B"]) -> Int[Array, " B"]:
    """Number of comparisons in a round: of all accepted drafts and the first rejected one."""
    return jnp.minimum(accepted + 1, levels)


def check_prior(controller: Controller) -> None:
    """Raises ValueError unless `prior_alpha` and `prior_beta` can be parameters of a Beta."""
    possible = lambda value: BETA_FLOOR <= value < float("inf")
    controller.require_that(possible, f"be at least {BETA_FLOOR}, and finite", "prior_alpha", "prior_beta")


def draw_beta(
    keys: Key[Array, " B"], alpha: Float[Array, "B positions"], beta: Float[Array, "B positions"]
) -> Float[Array, "B positions"]:
    """Approximate draws from Beta(alpha, beta): the error of the distribution function is below 0.005.

    It is X / (X + Y) of two Gamma variables, each by Wilson and Hilferty's cube of a normal variable.
    """
    shape = jnp.stack([alpha, beta], axis=1)  # not `jax.random.beta`: it is exact, but its rejection loop is slow
    more = shape + 1  # Gamma(a) is Gamma(a + 1) times U^(1 / a), and the approximation is good for shapes above 1
    third = 1 / (9 * more)
    normal = jax.vmap(lambda key: jax.random.normal(key, shape.shape[1:], jnp.float32))(fold(keys, 0))
    uniform = jax.vmap(lambda key: jax.random.uniform(key, shape.shape[1:], jnp.float32, minval=1e-20))(fold(keys, 1))
    root = jnp.maximum(1 - third + normal * jnp.sqrt(third), 1e-6)
    log = jnp.log(more) + 3 * jnp.log(root) + jnp.log(uniform) / shape
    return jax.nn.sigmoid(log[:, 0] - log[:, 1])
