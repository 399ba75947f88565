"""The decoding time that follows from a run's counts and costs, without the noise of timing whole runs."""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.costs.timing import PieceCosts, piece_times
from jaxspec.decoding.prefill_buckets import shapes
from jaxspec.decoding.request import Request
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.engine.engine import Engine
from jaxspec.engine.statistics import Statistics, ratio
from jaxspec.evaluate.runner import REFERENCE


@dataclasses.dataclass(frozen=True)
class RunCosts:
    """Rounds of a run, seconds of its pieces, and `plain`, the seconds of plain decoding for the same tokens."""

    rounds: int
    plain: float
    drafting: float
    verification: float
    control: float
    rest: float

    @property
    def whole(self) -> float:
        return self.drafting + self.verification + self.control + self.rest

    @property
    def speedup(self) -> float:
        return ratio(self.plain, self.whole)


def piece_costs(engines: Mapping[str, Engine], requests: Sequence[Request]) -> dict[str, PieceCosts]:
    """Times each method's rounds at the shapes of one batch, without history. `engines` include the reference."""
    greedy = all(request.sampling.temperature == 0 for request in requests)
    specs = {
        name: dataclasses.replace(engine.method, history=0).speculation(greedy, tree_sizes=engine.tree_sizes)
        for name, engine in engines.items()
    }
    rows = max(shapes(spec, requests)[1] for spec in specs.values())
    models = {name: engine.models for name, engine in engines.items()}
    found = piece_times(specs, models, requests, rows, engines[REFERENCE].model.context)
    return {name: dataclasses.replace(costs, plain_rest=found[REFERENCE].rest) for name, costs in found.items()}


def run_costs(batches: Sequence[Sequence[RoundCounts]], pieces: PieceCosts, sizes: Collection[int]) -> RunCosts:
    """The cost of a run's rounds.

        plain         (s_t(1) + plain_rest) · tokens
        drafting      Σ_rounds levels · s_d
        verification  Σ_rounds verify(smallest compiled size that holds the round's nodes); `idle` without drafts
        control       Σ_rounds (levels · control_level + control_round)
        rest          Σ_rounds rest

    The rows of a batch run their rounds together: a batch has the tokens of its longest row, and a round has the levels
    and nodes of the row with the most. `sizes` are those for which verification was compiled.
    """
    tokens = levels = rounds = idle = 0
    verification = 0.0
    for histories in batches:
        tokens += max(int(np.sum(history.committed)) for history in histories)
        drafted = _most([history.levels for history in histories])
        verified = _most([history.verified for history in histories])
        levels, rounds = levels + int(drafted.sum()), rounds + len(verified)
        some = (drafted > 0) | (verified > 0) | (pieces.idle is None)
        idle += int((~some).sum())
        verified = verified[some].tolist()
        fitting = [min((size for size in sizes if size > nodes), default=max(sizes)) for nodes in verified]
        verification += sum(pieces.verify[size] for size in fitting)
    return RunCosts(
        rounds=rounds,
        plain=(pieces.plain + pieces.plain_rest) * tokens,
        drafting=levels * pieces.level,
        verification=verification + idle * (pieces.idle or 0.0),
        control=levels * pieces.control_level + rounds * pieces.control_round,
        rest=(rounds - idle) * pieces.rest,
    )


def _most(rows: Sequence[Any]) -> np.ndarray:
    """The largest count of all rows in each round. Rows may have different numbers of rounds."""
    return np.array([max(counts) for counts in itertools.zip_longest(*rows, fillvalue=0)], int)


def eq14_speedup(counts: Statistics, alpha: float) -> float:
    """EESD's Eq. 14 of a chain: v_d / ((alpha - v_d) r_d + v_d), without verification's cost; alpha = T_d / T_t."""
    # By r_d / v_d = drafted / tokens it is defined even if nothing was accepted.
    return ratio(counts.tokens, alpha * counts.drafted + counts.tokens - counts.accepted)
