"""One trial of a skip set: its time per verified token relative to plain decoding (arXiv:2309.08168, Eq. 1).

The set is traced, so one compiled loop serves all sets.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import Request
from jaxspec.drafters.layer_skip import SkipMask, layers_of, skip
from jaxspec.engine.engine import Engine
from jaxspec.engine.generation import Generation
from jaxspec.engine.statistics import ratio, statistics_of
from jaxspec.evaluate import piece_times
from jaxspec.evaluate.cost_model import PieceCosts, run_costs
from jaxspec.evaluate.runner import warm
from jaxspec.host.processes import largest
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method
from jaxspec.train.decoding_options import Objectives

Corner = Bool[np.ndarray, " D"]


@dataclasses.dataclass(frozen=True)
class BlockCosts(PieceCosts):
    """Seconds of the pieces of a round for one sequence, where `level` skips no blocks.

    Attributes:
        attention, mlp: seconds saved by skipping one block, equal for all layers.
    """

    attention: float = 0.0
    mlp: float = 0.0

    def of_pieces(self, skips: SkipMask) -> PieceCosts:
        """Costs of the pieces of a round if drafting skips this set."""
        saved = sum(skips.attention) * self.attention + sum(skips.mlp) * self.mlp
        return dataclasses.replace(self, level=self.level - saved)


@dataclasses.dataclass(frozen=True)
class Trial:
    """A set and its results: the speedup over plain decoding (by time per verified token), acceptance rate and tau."""

    skips: SkipMask
    speedup: float
    acceptance_rate: float
    tau: float

    @property
    def corner(self) -> Corner:
        """Whether each attention block, then each MLP block, is skipped."""
        return np.array([*self.skips.attention, *self.skips.mlp])

    def to_json(self) -> dict[str, Any]:
        """The trial as a line of the log."""
        skips = layers_of(self.skips)
        return {**skips, "speedup": self.speedup, "acceptance_rate": self.acceptance_rate, "tau": self.tau}

    @staticmethod
    def from_json(line: dict[str, Any], num_layers: int) -> "Trial":
        """Inverse of `to_json`."""
        values = dict(line)
        skips = skip(num_layers, values.pop("attention"), values.pop("mlp"))
        return Trial(skips, **values)


Objective = Callable[[SkipMask], Trial]


def measure(model: Checkpoint, method: Method, kind: Objectives, requests: Sequence[Request]) -> dict[str, Any]:
    """The measurements on this device that an objective needs, as JSON values."""
    if kind == "measured":
        return {"plain": timed(Engine(model, "plain"), requests)[1]}
    say("measuring what a block costs on this device, which takes a minute or so")
    return dataclasses.asdict(measure_costs(model, method, requests[:1]))


def measure_costs(model: Checkpoint, method: Method, requests: Sequence[Request]) -> BlockCosts:
    """Times the pieces of a round on this device; a drafted level also without all attention or all MLP blocks."""
    layers = model.config.model.num_layers
    none, all_ = (), range(layers)
    sets = {"whole": (none, none), "no attention": (all_, none), "no mlp": (none, all_), "bare": (all_, all_)}
    engines = {name: Engine(model, method, draft=skip(layers, *each).traced()) for name, each in sets.items()}
    found = piece_times.measure({**engines, "plain": Engine(model, "plain")}, requests)
    whole, no_attention, no_mlp, bare = (found[name].level for name in sets)
    # Each kind is measured twice, with and without the other kind. Their sum must not exceed the time of both.
    both = max(whole - bare, 0.0)
    attention = min(max((whole - no_attention + no_mlp - bare) / 2, 0.0), both)
    return BlockCosts(**vars(found["whole"]), attention=attention / layers, mlp=(both - attention) / layers)


def objective_of(
    model: Checkpoint, method: Method, kind: Objectives, requests: Sequence[Request], costs: dict[str, Any]
) -> Objective:
    """A function that runs a trial of a set.

    If it is `measured`, the time is wall-clock time, one prompt after another. Otherwise it follows from the rounds of
    decoding and the costs, so that other work on the machine does not disturb it.

    Args:
        costs: the result of `measure`, before the first trial.
    """

    def objective(skips: SkipMask) -> Trial:
        drafting = Engine(model, method, draft=skips.traced())
        if kind == "measured":
            found, seconds = timed(drafting, requests)
            speedup = ratio(costs["plain"], seconds)
        else:
            verify = {int(nodes): seconds for nodes, seconds in costs["verify"].items()}  # JSON made them strings
            pieces = BlockCosts(**{**costs, "verify": verify}).of_pieces(skips)
            sizes = method.speculation(greedy=True, tree_sizes=drafting.tree_sizes).verify_sizes
            found = drafting.run(requests)
            speedup = run_costs([[each.history] for each in found], pieces, sizes).speedup  # batches of one
        counts = statistics_of([each.history for each in found])
        return Trial(skips, speedup, counts.acceptance_rate, counts.tau)

    return objective


def timed(decoding: Engine, requests: Sequence[Request]) -> tuple[list[Generation], float]:
    """Decodes each request alone, and measures the seconds per committed token, without compilation.

    With several processes, these are the seconds of the slowest.
    """
    found = [warm(decoding, [request], [None])[0] for request in requests]
    tokens = statistics_of([each.history for each in found]).tokens
    return found, largest(ratio(sum(each.decode_seconds for each in found), tokens))
