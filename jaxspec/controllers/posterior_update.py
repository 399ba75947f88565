"""Posterior updates of Thompson sampling, by what a round compared (EESD, arXiv:2406.03853, §3.3)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

BETA_FLOOR = 0.01
"""alpha and beta never fall below this: one reading of the paper takes from alpha, and a Beta needs both above 0."""


def compared(accepted: Int[Array, " B"], levels: Int[Array, " B"]) -> Int[Array, " B"]:
    """Comparisons that a round with `accepted` of `levels` drafts made: up to the first that was not accepted."""
    return jnp.minimum(accepted + 1, levels)


def update_beta(
    alpha: Float[Array, " B"], beta: Float[Array, " B"], successes: Int[Array, " B"], trials: Int[Array, " B"]
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Beta(alpha + successes, beta + failures) (Eqs. 3 and 4)."""

    def add(old, new):
        return jnp.maximum(old + new, BETA_FLOOR)

    return add(alpha, successes), add(beta, trials - successes)


def update_mean(
    mean: Float[Array, " B"], counted: Float[Array, " B"], successes: Int[Array, " B"], trials: Int[Array, " B"]
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The mean over a prior, counted once, and all trials so far; and their number (Eqs. 8 and 10)."""
    total = counted + trials
    return mean + (successes - trials * mean) / (total + 1), total  # exact where nothing is new


def combine(
    predicted: Float[Array, " B"], mean: Float[Array, " B"], rounds: Float[Array, " B"], model: float, sample: float
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Mean and variance of the normal posterior of a prediction and a mean over `rounds` (Eqs. 6, 7 and 9).

    Args:
        model, sample: variances of the prediction's error and of a round's mean.
    """
    total = rounds * model + sample
    return (sample * predicted + rounds * model * mean) / total, model * sample / total
