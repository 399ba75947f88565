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
from jaxspec.methods.method import Method, parse_method

Corner = Bool[np.ndarray, " D"]


@dataclasses.dataclass(frozen=True)
class BlockCosts:
    """Seconds of the pieces of a round, for one sequence.

    Attributes:
        plain: one forward of the target over one token.
        verify: verification, by the number of tree nodes, which is a string as in JSON.
        level: a drafted level without skipped blocks.
        attention, mlp: seconds saved by skipping one block, equal for all layers.
        control_level, control_round: the controller's decision after a level, and its update after a round.
        rest, plain_rest: the rest of a round, and of a round of plain decoding.
    """

    plain: float
    verify: dict[str, float]
    level: float
    attention: float
    mlp: float
    control_level: float
    control_round: float
    rest: float
    plain_rest: float

    def of_pieces(self, skips: SkipMask) -> PieceCosts:
        """Costs of the pieces of a round if drafting skips this set."""
        saved = sum(skips.attention) * self.attention + sum(skips.mlp) * self.mlp
        return PieceCosts(
            plain=self.plain,
            verify={int(nodes): seconds for nodes, seconds in self.verify.items()},
            level=self.level - saved,
            control_level=self.control_level,
            control_round=self.control_round,
            rest=self.rest,
            plain_rest=self.plain_rest,
        )


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


def engine(model: Checkpoint, method: Method, skips: SkipMask) -> Engine:
    """An engine that drafts with the set, as traced values."""
    return Engine(model, method, draft=skips.traced())


def measure_costs(model: Checkpoint, method: Method, requests: Sequence[Request]) -> BlockCosts:
    """Times the pieces of a round on this device; a drafted level also without all attention or all MLP blocks."""
    layers = model.config.model.num_layers
    none, all_ = (), range(layers)
    sets = {"whole": (none, none), "no attention": (all_, none), "no mlp": (none, all_), "bare": (all_, all_)}
    engines = {name: engine(model, method, skip(layers, *each)) for name, each in sets.items()}
    found = piece_times.measure({**engines, "plain": Engine(model, "plain")}, requests)
    whole, no_attention, no_mlp, bare = (found.level[name] for name in sets)
    # Each kind is measured twice, with and without the other kind. Their sum must not exceed the time of both.
    both = max(whole - bare, 0.0)
    attention = min(max((whole - no_attention + no_mlp - bare) / 2, 0.0), both)
    return BlockCosts(
        plain=found.target[1],
        verify={str(nodes): seconds for nodes, seconds in found.target.items()},
        level=whole,
        attention=attention / layers,
        mlp=(both - attention) / layers,
        control_level=found.control_level["whole"],
        control_round=found.control_round["whole"],
        rest=found.rest["whole"],
        plain_rest=found.rest["plain"],
    )


def modelled(model: Checkpoint, method: Method, requests: Sequence[Request], costs: BlockCosts) -> Objective:
    """An objective that computes time from the rounds of decoding and `costs`. Other work on the machine does not
    disturb it."""

    def objective(skips: SkipMask) -> Trial:
        drafting = engine(model, method, skips)
        sizes = method.speculation(greedy=True, tree_sizes=drafting.tree_sizes).verify_sizes
        found = drafting.run(requests)
        spent = run_costs([[each.history] for each in found], costs.of_pieces(skips), sizes)  # batches of one
        return outcome(skips, spent.speedup, found)

    return objective


def measured(model: Checkpoint, method: Method, requests: Sequence[Request], plain: float) -> Objective:
    """An objective that measures wall-clock time, one prompt after another; `plain` is from `plain_seconds`."""

    def objective(skips: SkipMask) -> Trial:
        found = one_by_one(engine(model, method, skips), requests)
        return outcome(skips, ratio(plain, seconds_per_token(found)), found)

    return objective


def plain_seconds(model: Checkpoint, requests: Sequence[Request]) -> float:
    """Wall-clock seconds per token of plain decoding."""
    return seconds_per_token(one_by_one(Engine(model, parse_method("plain")), requests))


def one_by_one(decoding: Engine, requests: Sequence[Request]) -> list[Generation]:
    """Decodes each request alone; times exclude compilation."""
    return [warm(decoding, [request], [None])[0] for request in requests]


def seconds_per_token(found: Sequence[Generation]) -> float:
    """Seconds of decoding per committed token; with several processes, those of the slowest."""
    tokens = statistics_of([each.history for each in found]).tokens
    return largest(ratio(sum(each.decode_seconds for each in found), tokens))


def outcome(skips: SkipMask, speedup: float, found: Sequence[Generation]) -> Trial:
    """The trial of a set, with acceptance rate and tau over all texts."""
    counts = statistics_of([each.history for each in found])
    return Trial(skips, speedup, counts.acceptance_rate, counts.tau)
