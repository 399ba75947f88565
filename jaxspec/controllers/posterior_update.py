"""Posterior updates of Thompson sampling, by what a round compared (EESD, arXiv:2406.03853, §3.3)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxspec.decoding.sampling import fold

BETA_FLOOR = 0.01
"""Lower bound of alpha and beta. One reading of the paper can decrease alpha, and a Beta needs both above 0."""


def compared(accepted: Int[Array, " B"], levels: Int[Array, " B"]) -> Int[Array, " B"]:
    """Number of comparisons in a round: those of all accepted drafts, and of the first rejected one."""
    return jnp.minimum(accepted + 1, levels)


def update_beta(
    alpha: Float[Array, " B"], beta: Float[Array, " B"], successes: Int[Array, " B"], trials: Int[Array, " B"]
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Beta(alpha + successes, beta + failures) (Eqs. 3 and 4)."""

    def add(old, new):
        return jnp.maximum(old + new, BETA_FLOOR)

    return add(alpha, successes), add(beta, trials - successes)


def draw_beta(
    keys: Key[Array, " B"], alpha: Float[Array, "B positions"], beta: Float[Array, "B positions"]
) -> Float[Array, "B positions"]:
    """Approximate draws from Beta(alpha, beta): the error of the distribution function is below 0.005.

    It is X / (X + Y) of two Gamma variables, each by Wilson and Hilferty's cube of a normal variable.
    `jax.random.beta` is exact, but its rejection loop takes several times as long (`benchmarks/README.md`).
    """
    shape = jnp.stack([alpha, beta], axis=1)
    more = shape + 1  # Gamma(a) is Gamma(a + 1) times U^(1 / a), and the approximation is good for shapes above 1
    third = 1 / (9 * more)
    normal = jax.vmap(lambda key: jax.random.normal(key, shape.shape[1:]))(fold(keys, 0))
    uniform = jax.vmap(lambda key: jax.random.uniform(key, shape.shape[1:], minval=1e-20))(fold(keys, 1))
    root = jnp.maximum(1 - third + normal * jnp.sqrt(third), 1e-6)
    log = jnp.log(more) + 3 * jnp.log(root) + jnp.log(uniform) / shape
    return jax.nn.sigmoid(log[:, 0] - log[:, 1])


def update_mean(
    mean: Float[Array, " B"], counted: Float[Array, " B"], successes: Int[Array, " B"], trials: Int[Array, " B"]
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The mean over all trials so far, with the prior as one more trial; and the number of trials (Eqs. 8 and 10)."""
    total = counted + trials
    return mean + (successes - trials * mean) / (total + 1), total  # exact if there are no new trials


def combine(
    predicted: Float[Array, " B"], mean: Float[Array, " B"], rounds: Float[Array, " B"], model: float, sample: float
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Mean and variance of the normal posterior of a prediction and a mean over `rounds` (Eqs. 6, 7 and 9).

    Args:
        model, sample: variances of the prediction's error and of a round's mean.
    """
    total = rounds * model + sample
    return (sample * predicted + rounds * model * mean) / total, model * sample / total
