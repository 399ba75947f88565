"""Thompson sampling whose first estimates come from a trained predictor (EESD, arXiv:2406.03853, Algorithm 3)."""

import dataclasses
from typing import ClassVar, final

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int, Key

from jaxspec.controllers.posterior_update import compared
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import FLOAT32, Drafter, Models, Prefix
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.sampling import bernoulli
from jaxspec.decoding.tree import Rows, init_tree
from jaxspec.model import kv_cache as kv
from jaxspec.model.layers import Linear

FOLDER = "calibrator"  # in the folder of the drafter's head
LEVELS = 10  # levels with their own matrix; deeper levels use the last one
INPUTS = ("hidden", "both", "top-probability")


class AcceptancePredictor(nnx.Module):
    """Cali-TS's predictor of whether the target accepts the newest draft.

    The softmax of its logits of (rejected, accepted) is the probability; the paper prints a sigmoid of two numbers.
    INPUTS: the logits are linear in hidden states, in the log of the top probability, or in both. In hidden states
    they are W_p · [W^i h_T ; h_D] (Eq. 5), with W^i [D, D] for each of ten levels i and W_p [D + E, 2]. W_p and W^i are
    folded into one matrix [D, 2] per level: for a 70B target kilobytes instead of 1.3 GB.
    """

    def __init__(
        self,
        target_hidden: int,
        draft_hidden: int,
        *,
        rngs: nnx.Rngs,
        inputs: str = "hidden",
        dtype: jnp.dtype = FLOAT32,
    ):
        self.inputs, hidden, top = inputs, inputs != "top-probability", inputs != "hidden"
        start = jax.random.normal(rngs.params(), (LEVELS, target_hidden, 2), dtype) * target_hidden**-0.5
        self.target = nnx.Param(start, axes=("level", "embed", "label")) if hidden else None
        of_draft = Linear(rngs, (draft_hidden, 2), ("embed", "label"), bias=False, dtype=dtype)
        self.draft = of_draft if hidden else None
        self.top = nnx.Param(jnp.zeros((2, 2), dtype), axes=(None, "label")) if top else None  # of 1 and the log

    def __call__(
        self,
        level: Int[Array, ""],
        target_hidden: Float[Array, "B D"],
        draft_hidden: Float[Array, "B E"],
        log_top: Float[Array, " B"],
    ) -> Float[Array, "B 2"]:
        """Logits of (rejected, accepted) for the token drafted at `level`, float32.

        Args:
            level: from 1.
            target_hidden: the target's feature at the last verified position.
            draft_hidden: the drafter's hidden state that gave the token's distribution.
            log_top: log of the largest probability in that distribution.
        """
        logits = jnp.zeros((len(log_top), 2), jnp.float32)
        if self.target is not None and self.draft is not None:
            matrix = self.target[...][jnp.clip(level, 1, LEVELS) - 1]
            logits += (target_hidden.astype(matrix.dtype) @ matrix).astype(jnp.float32)
            logits += self.draft(draft_hidden.astype(matrix.dtype)).astype(jnp.float32)
        if self.top is not None:
            constant, slope = self.top[...].astype(jnp.float32)
            logits += constant + log_top[:, None] * slope
        return logits


def draft_width(drafter: Drafter, models: Models) -> int:
    """Width E of the hidden states that give a drafter's logits, traced. Raises ValueError if it has none."""

    def hidden(models: Models) -> Array:
        config, dtype = models.target.config, models.target.dtype
        root, one = jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32)
        prefix = Prefix(token=root[:, None], length=one, cache=kv.allocate(config, 1, 1, dtype))
        drafts, _ = drafter.root(models, drafter.init(models, 1, 1), prefix, init_tree(root, 2, None))
        if drafts.hidden is None:
            raise ValueError(f"{drafter.name} has no hidden states to predict from")
        return drafts.hidden

    return jax.eval_shape(hidden, models).shape[-1]


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
