"""What a controller had learnt after each round, found again from the rounds: the log keeps only where it ended."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.controllers.adaptive import Adaptive
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.controllers.cali_ts import CaliTS
from jaxspec.evaluate.results import history
from jaxspec.report.runs import Run

READ: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Adaptive: ("threshold γ", lambda state: state.gamma),
    BetaTS: ("mean of the posterior", lambda state: state.alpha / (state.alpha + state.beta)),
    CaliTS: ("estimate from samples", lambda state: state.estimate),
}
"""What of a controller's state is shown."""


@dataclasses.dataclass(frozen=True)
class Learnt:
    """A number after each round of all answers, one after the other."""

    label: str
    values: Sequence[float]


def thresholds(run: Run, name: str) -> Learnt | None:
    """What a method's controller went by; None where it learns nothing, or in rows side by side from turn to turn."""
    controller: Any = run.methods[name].controller
    kept = run.settings["keep_state"]
    if type(controller) not in READ or (kept and run.settings["batch_size"] > 1):
        return None
    label, read = READ[type(controller)]
    state: Any = None
    values: list[float] = []
    for turn in run.turns(name):
        if state is None or not kept:
            state = controller.init(None, 1)
        state, states = replay(controller, state, history(turn))
        values += np.asarray(read(states))[:, 0].tolist()
    return Learnt(label, values)


def replay(controller: Any, state: Any, rounds: np.ndarray) -> tuple[Any, Any]:
    """The state after all rounds, and after each of them.

    Args:
        rounds: [rounds, 5], columns `decode.HISTORY`.
    """

    def learn(state: Any, row: jax.Array) -> tuple[Any, Any]:
        new = controller.update(state, row[1:2], row[2:3])
        return new, new

    return jax.lax.scan(learn, state, jnp.asarray(rounds))
