"""Thompson sampling whose first estimates come from a trained predictor (EESD, arXiv:2406.03853, Algorithm 3)."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import chex
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.heads import check_same_shape, load_head, read_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.controllers.acceptance_predictor import FOLDER, NAME, AcceptancePredictor, predict
from jaxspec.decoding.sampling import bernoulli

ESTIMATES = ("compared", "printed")
PREDICTIONS = ("both", "model", "sampled")


@chex.dataclass(frozen=True)
class CaliState:
    """What each sequence has seen: the estimate theta_hat is a mean over the prior, counted once, and `trials`."""

    estimate: Float[Array, " B"]
    trials: Float[Array, " B"]
    rounds: Float[Array, " B"]  # n: those in which something was drafted


@dataclasses.dataclass(frozen=True)
class CaliTS:
    """Drafts on by a coin: a trained predictor's chance at first, then what was accepted so far (EESD's Cali-TS).

    Where the predictor says theta_M, the estimate is theta_hat, and n rounds were verified (Eqs. 6, 7 and 9):

        mu = (sigma_S² theta_M + n sigma_M² theta_hat) / (n sigma_M² + sigma_S²)
        sigma² = sigma_M² sigma_S² / (n sigma_M² + sigma_S²)

    The paper draws theta ~ N(mu, sigma²), clipped to [0, 1], and then chi ~ Bernoulli(theta), anew for every token. No
    theta is used twice, so a coin with the mean of the clipped theta as its chance has the very same distribution.

    Attributes:
        sigma_model, sigma_sample: standard deviations of the predictor's error and of a round's mean. The paper gives
            none; with these the estimate outweighs the predictor after a hundred rounds ((0.5 / 0.05)²). Where tokens
            of a text differ in how likely they are accepted, only the predictor can tell, and trusting it for longer
            was better in simulation (benchmarks/thompson_simulation.py); where they do not, it made no difference.
        prior: theta_hat before the first round, which the paper does not give either.
        estimate: `compared`: accepted drafts / comparisons made, of which a round with a of D levels accepted makes
            min(a + 1, D). `printed`: Eqs. 8 and 10 to the letter, whose trials are the accepted drafts alone; that
            goes to 1 whatever is accepted, as 1 - theta_hat = (1 - prior) / (accepted + 1).
        prediction: `both`, or one alone as in the paper's Table 4: `model` (n stays 0), or `sampled`, which needs no
            predictor: theta ~ N(theta_hat, sigma_S² / (n + 1)), the prior counted as a round.
    """

    stops: ClassVar[bool] = True
    sigma_model: float = 0.05
    sigma_sample: float = 0.5
    prior: float = 0.75
    estimate: str = "compared"
    prediction: str = "both"

    def __post_init__(self) -> None:
        for name, allowed in (("estimate", ESTIMATES), ("prediction", PREDICTIONS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"cali-ts: {name} is one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        for name in ("sigma_model", "sigma_sample"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"cali-ts: {name} must be above 0, and is {getattr(self, name)}")
        if not 0 <= self.prior <= 1:
            raise ValueError(f"cali-ts: prior is a probability, not {self.prior}")

    @property
    def needs_weights(self) -> bool:
        """Whether it asks a trained predictor."""
        return self.prediction != "sampled"

    @staticmethod
    def load_weights(target: Checkpoint, head: Path, draft_hidden: int, dtype: jnp.dtype) -> AcceptancePredictor:
        """Restores the predictor that lies in a drafter's head.

        Args:
            head: folder of the drafter's weights.
            draft_hidden: width of the drafter's hidden states.

        Raises:
            CheckpointError: there is none, or it was trained for another target or drafter.
        """
        path = head / FOLDER
        if not (path / "config.json").exists():
            raise CheckpointError(
                f"cali-ts needs a trained predictor, and there is none at {path}; "
                f"`jaxspec-train calibrator --target {target.path} --head {head.name}` makes one"
            )
        config = read_head(path, NAME)
        check_same_shape(path, config.model, target.config.model)
        ours = {"target_hidden": target.config.model.hidden_size, "draft_hidden": draft_hidden}
        if config.settings != ours:
            raise CheckpointError(f"the predictor at {path} was trained for {config.settings}, and here it is {ours}")
        return load_head(path, lambda: AcceptancePredictor.blank(**ours), dtype, target.mesh)

    def init(self, models, batch) -> CaliState:
        # Arrays of their own: the loop's state is donated, and no buffer can be given twice.
        of = lambda value: jnp.full(batch, value, jnp.float32)
        return CaliState(estimate=of(self.prior), trials=of(0), rounds=of(0))

    def keep_drafting(self, models, keys, state, evidence):
        model, sample = self.sigma_model**2, self.sigma_sample**2
        if self.prediction == "sampled":
            mean, variance = state.estimate, sample / (state.rounds + 1)
        else:
            rounds = state.rounds if self.prediction == "both" else jnp.zeros_like(state.rounds)
            predicted = predict(models.control, evidence.level, evidence.target_hidden, evidence.draft_hidden)
            total = rounds * model + sample
            mean = (sample * predicted + rounds * model * state.estimate) / total
            variance = model * sample / total
        return bernoulli(keys, clipped_mean(mean, jnp.sqrt(variance)))

    def update(self, state, accepted, levels) -> CaliState:
        trials = accepted if self.estimate == "printed" else jnp.minimum(accepted + 1, levels)
        total = state.trials + trials
        return CaliState(
            estimate=state.estimate + (accepted - trials * state.estimate) / (total + 1),  # exact where nothing is new
            trials=total,
            rounds=state.rounds + (levels > 0),
        )


def clipped_mean(mean: Float[Array, " B"], deviation: Float[Array, " B"]) -> Float[Array, " B"]:
    """The mean of N(mean, deviation²) clipped to [0, 1]: E max(0, X) - E max(0, X - 1)."""

    def excess(over: float) -> Array:
        z = (mean - over) / deviation
        return deviation * (z * norm.cdf(z) + norm.pdf(z))

    return excess(0.0) - excess(1.0)
