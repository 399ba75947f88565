"""Recomputes a controller's state after each round, because the log stores only the last one."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.controllers.adaptive import Adaptive
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.controllers.cali_ts import CaliTS
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.drafter import State
from jaxspec.decoding.round_counts import RoundCounts
from jaxspec.evaluate.results import history
from jaxspec.report.runs import Run

READ: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Adaptive: ("threshold γ", lambda state: state.gamma),
    BetaTS: ("mean of the posterior", lambda state: state.alpha / (state.alpha + state.beta)),
    CaliTS: ("estimate from samples", lambda state: state.estimate),
}
"""The number of a controller's state that is shown: its label, and how to read it."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """A number after each round of all answers, one after the other."""

    label: str
    values: Sequence[float]


def thresholds(run: Run, name: str) -> Curve | None:
    """The curve of a method's controller. None if it learns nothing, or kept its state in several rows at once."""
    controller = run.methods[name].controller
    kept = run.settings["keep_state"]
    if type(controller) not in READ or (kept and run.settings["batch_size"] > 1):
        return None
    label, read = READ[type(controller)]
    state: State = None
    values: list[float] = []
    for turn in run.turns(name):
        if state is None or not kept:
            state = controller.init(1)
        state, states = replay(controller, state, history(turn))
        values += np.asarray(read(states))[:, 0].tolist()
    return Curve(label, values)


def replay(controller: Controller, state: State, rounds: RoundCounts) -> tuple[State, State]:
    """The state, of one text, after all its rounds, and after each of them."""

    def learn(state: State, counts: RoundCounts) -> tuple[State, State]:
        new = controller.update(state, jax.tree.map(lambda count: count[None], counts))
        return new, new

    return jax.lax.scan(learn, state, jax.tree.map(jnp.asarray, rounds))
