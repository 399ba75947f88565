"""Thompson sampling whose first estimates come from a trained predictor (EESD, arXiv:2406.03853, Algorithm 3)."""

import dataclasses
from typing import ClassVar, final

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Key

from jaxspec.controllers.acceptance_predictor import FOLDER, INPUTS, AcceptancePredictor
from jaxspec.controllers.posterior_update import compared
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import FLOAT32, Models
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.sampling import bernoulli
from jaxspec.decoding.tree import Rows

ESTIMATES = ("compared", "printed")
PREDICTIONS = ("both", "model", "sampled")


@chex.dataclass(frozen=True)
class CaliState:
    """Estimates of each sequence. theta_hat is the mean over `trials`, with the prior as one more trial."""

    estimate: Float[Array, " B"]
    trials: Float[Array, " B"]
    rounds: Float[Array, " B"]  # n: number of rounds with drafts


@final
@dataclasses.dataclass(frozen=True)
class CaliTS(Controller):
    """EESD: Thompson sampling that starts from a trained predictor.

    After each level it draws at random whether to draft another one. With the prediction theta_M, the estimate
    theta_hat and n verified rounds (Eqs. 6, 7 and 9):

        mu = (sigma_S² theta_M + n sigma_M² theta_hat) / (n sigma_M² + sigma_S²)
        sigma² = sigma_M² sigma_S² / (n sigma_M² + sigma_S²)

    The paper draws theta ~ N(mu, sigma²), clipped to [0, 1], and then chi ~ Bernoulli(theta) for every token. No theta
    is used twice, so a Bernoulli variable with the mean of the clipped theta has the same distribution.

    Attributes:
        sigma_model, sigma_sample: standard deviations of the predictor's error and of a round's mean. The paper gives
            none. With the defaults the estimate outweighs the predictor after a hundred rounds ((0.5 / 0.05)²); in
            simulation a longer-lasting weight was no worse.
        prior: theta_hat before the first round; the paper does not give it.
        estimate: `compared`: accepted drafts / comparisons. A round in which a of D levels were accepted makes
            min(a + 1, D) comparisons. `printed`: Eqs. 8 and 10 literally, where only accepted drafts count as trials.
            This estimate tends to 1 in any case, because 1 - theta_hat = (1 - prior) / (accepted + 1).
        prediction: `both`, or one alone as in the paper's Table 4: `model` (n stays 0), or `sampled`, without a
            predictor: theta ~ N(theta_hat, sigma_S² / (n + 1)), where the prior counts as a round.
    """

    name: ClassVar[str] = "cali-ts"
    sigma_model: float = 0.05
    sigma_sample: float = 0.5
    prior: float = 0.75
    estimate: str = "compared"
    prediction: str = "both"

    def __post_init__(self) -> None:
        self.require_that(lambda value: value in ESTIMATES, f"be one of {', '.join(ESTIMATES)}", "estimate")
        self.require_that(lambda value: value in PREDICTIONS, f"be one of {', '.join(PREDICTIONS)}", "prediction")
        positive = lambda value: 0 < value < float("inf")
        self.require_that(positive, "be above 0, and finite", "sigma_model", "sigma_sample")
        self.require_that(lambda value: 0 <= value <= 1, "be a probability, from 0 to 1", "prior")

    @property
    def needs_weights(self) -> bool:
        return self.prediction != "sampled"

    @property
    def weights_folder(self) -> str:
        return FOLDER

    def build_weights(
        self, target_hidden: int, draft_hidden: int, dtype: jnp.dtype = FLOAT32, inputs: str = INPUTS[0]
    ) -> AcceptancePredictor:
        """An untrained predictor for hidden states of these widths."""
        if inputs not in INPUTS:
            raise ValueError(f"has inputs {inputs!r}, which must be one of {', '.join(INPUTS)}")
        return AcceptancePredictor(target_hidden, draft_hidden, rngs=nnx.Rngs(0), inputs=inputs, dtype=dtype)

    def init(self, batch: int) -> CaliState:
        estimate, trials, rounds = (jnp.full(batch, value, jnp.float32) for value in (self.prior, 0, 0))
        return CaliState(estimate=estimate, trials=trials, rounds=rounds)

    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: CaliState, signals: DraftSignals) -> Rows:
        model, sample = self.sigma_model**2, self.sigma_sample**2
        if self.prediction == "sampled":
            mean, variance = state.estimate, sample / (state.rounds + 1)
        else:
            rounds = state.rounds if self.prediction == "both" else jnp.zeros_like(state.rounds)
            assert signals.draft_hidden is not None, "a drafter without hidden states has no predictor"
            log_top = jnp.log(jnp.maximum(signals.top_prob, jnp.finfo(jnp.float32).tiny))
            logits = models.control(signals.level, signals.target_hidden, signals.draft_hidden, log_top)
            predicted = jax.nn.softmax(logits)[:, 1]
            total = rounds * model + sample
            mean, variance = (sample * predicted + rounds * model * state.estimate) / total, model * sample / total
        return bernoulli(keys, clipped_mean(mean, jnp.sqrt(variance)))

    def update(self, state: CaliState, counts: RoundCounts) -> CaliState:
        accepted, levels = jnp.asarray(counts.accepted), jnp.asarray(counts.levels)
        trials = accepted if self.estimate == "printed" else compared(accepted, levels)
        total = state.trials + trials
        estimate = state.estimate + (accepted - trials * state.estimate) / (total + 1)  # exact without new trials
        return CaliState(estimate=estimate, trials=total, rounds=state.rounds + (levels > 0))


def clipped_mean(mean: Float[Array, " B"], deviation: Float[Array, " B"]) -> Float[Array, " B"]:
    """The mean of N(mean, deviation²) clipped to [0, 1]: E max(0, X) - E max(0, X - 1)."""

    def excess(over: float) -> Array:
        z = (mean - over) / deviation
        return deviation * (z * norm.cdf(z) + norm.pdf(z))

    return excess(0.0) - excess(1.0)
