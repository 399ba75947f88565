"""The decoding time that follows from a run's counts and costs, without the noise of timing whole runs."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.decoding.round_records import RoundCounts
from jaxspec.engine.statistics import Statistics, ratio


@dataclasses.dataclass(frozen=True)
class PieceCosts:
    """Seconds of each piece of a method's rounds.

    Attributes:
        plain: s_t(1): one forward of the target over one token.
        verify: by n: verification of n tree nodes. It is s_t(n), or less if verification reuses layers of drafting.
        level: s_d: one drafted level.
        rest: a round without its levels, verification and controller.
        plain_rest: the same for a round of plain decoding.
        control_level: the controller's decision after a level.
        control_round: the controller's update after a round.
    """

    plain: float
    verify: Mapping[int, float]
    level: float = 0.0
    rest: float = 0.0
    plain_rest: float = 0.0
    control_level: float = 0.0
    control_round: float = 0.0


@dataclasses.dataclass(frozen=True)
class RunCosts:
    """Seconds of a run's pieces, and `plain`, those of plain decoding for the same tokens; and its number of rounds."""

    rounds: int
    plain: float
    drafting: float
    verification: float
    control: float
    rest: float

    @property
    def whole(self) -> float:
        """Seconds of decoding in all."""
        return self.drafting + self.verification + self.control + self.rest

    @property
    def speedup(self) -> float:
        """Speedup over plain decoding; 0 if nothing was decoded."""
        return ratio(self.plain, self.whole)


def run_costs(batches: Sequence[Sequence[RoundCounts]], pieces: PieceCosts, sizes: Collection[int]) -> RunCosts:
    """The cost of a run's rounds.

        plain         (s_t(1) + plain_rest) · tokens
        drafting      Σ_rounds levels · s_d
        verification  Σ_rounds verify(smallest compiled size that holds the round's nodes)
        control       Σ_rounds (levels · control_level + control_round)
        rest          Σ_rounds rest

    The rows of a batch run their rounds together. So a batch has the tokens of its longest row, and a round has the
    levels and nodes of the row with the most.

    Args:
        batches: for each batch, the round counts of each row.
        sizes: tree sizes for which verification was compiled.
    """
    tokens = levels = rounds = 0
    verification = 0.0
    for histories in batches:
        tokens += max(int(np.sum(history.committed)) for history in histories)
        levels += int(_most([history.levels for history in histories]).sum())
        verified = _most([history.verified for history in histories]).tolist()
        rounds += len(verified)
        fitting = [min((size for size in sizes if size > nodes), default=max(sizes)) for nodes in verified]
        verification += sum(pieces.verify[size] for size in fitting)
    return RunCosts(
        rounds=rounds,
        plain=(pieces.plain + pieces.plain_rest) * tokens,
        drafting=levels * pieces.level,
        verification=verification,
        control=levels * pieces.control_level + rounds * pieces.control_round,
        rest=rounds * pieces.rest,
    )


def _most(rows: Sequence[Any]) -> np.ndarray:
    """For each round, the largest count of all rows. Rows may have different numbers of rounds."""
    together = np.zeros(max(map(len, rows)), int)
    for row in rows:
        np.maximum(together[: len(row)], row, out=together[: len(row)])
    return together


def eq14_speedup(counts: Statistics, alpha: float) -> float:
    """The speedup of a chain by EESD's Eq. 14, v_d / ((alpha - v_d) r_d + v_d). It ignores the cost of verification.

    It is computed with r_d / v_d = drafted / tokens, so that it is defined if nothing was accepted.

    Args:
        alpha: T_d / T_t, the time of one drafted token in units of a forward of the target.
    """
    return ratio(counts.tokens, alpha * counts.drafted + counts.tokens - counts.accepted)
