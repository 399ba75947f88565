"""The decoding time that follows from a run's counts and costs, without the noise of timing whole runs."""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.decoding.round_records import RoundCounts
from jaxspec.engine.statistics import Statistics, ratio


@dataclasses.dataclass(frozen=True)
class PieceCosts:
    """Seconds of each piece of a method's rounds.

    Attributes:
        plain: s_t(1), one forward of the target over one token.
        verify: verification of n tree nodes, by n: s_t(n), or less if it reuses layers of drafting.
        level: s_d, one drafted level as it occurs in a round, without the controller.
        rest, plain_rest: a round without its levels, verification and controller, and one of plain decoding.
        control_level: the controller's decision after a level, and its inputs.
        control_round: the controller's update after a round.
        idle: a round that drafts nothing, without the controller; None: its verification and the rest.
    """

    plain: float
    verify: Mapping[int, float]
    level: float = 0.0
    rest: float = 0.0
    plain_rest: float = 0.0
    control_level: float = 0.0
    control_round: float = 0.0
    idle: float | None = None


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


def run_costs(batches: Sequence[Sequence[RoundCounts]], pieces: PieceCosts, sizes: Collection[int]) -> RunCosts:
    """The cost of a run's rounds.

        plain         (s_t(1) + plain_rest) · tokens
        drafting      Σ_rounds levels · s_d
        verification  Σ_rounds verify(smallest compiled size that holds the round's nodes); `idle` without drafts
        control       Σ_rounds (levels · control_level + control_round)
        rest          Σ_rounds rest

    The rows of a batch run their rounds together: a batch has the tokens of its longest row, and a round has the levels
    and nodes of the row with the most.

    Args:
        batches: the round counts of each row, by batch.
        sizes: tree sizes for which verification was compiled.
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
    """The speedup of a chain by EESD's Eq. 14, v_d / ((alpha - v_d) r_d + v_d), which ignores the cost of verification.

    Args:
        alpha: T_d / T_t, the time of one drafted token in units of a forward of the target.
    """
    # By r_d / v_d = drafted / tokens it is defined even if nothing was accepted.
    return ratio(counts.tokens, alpha * counts.drafted + counts.tokens - counts.accepted)
