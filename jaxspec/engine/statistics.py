"""The papers' metrics, each defined once, computed from histories of rounds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspec.decoding.round_counts import RoundCounts, join


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What the rounds of one or several texts add up to. The token that prefill yields is in none of these."""

    tokens: int  # committed
    uncut: int | None  # tokens of whole rounds; None where a log of an earlier version does not say
    rounds: int
    accepted: int  # drafts
    levels: int  # drafted: the deepest live path of each round
    drafted: int  # nodes, before pruning
    verified: int  # nodes, without roots
    reached: tuple[int, ...]  # [i]: rounds with a draft at position i whose first i drafts were accepted
    accepted_at: tuple[int, ...]  # [i]: those whose draft at position i was accepted

    @property
    def tau(self) -> float:
        """Tokens a round, bonus included (EAGLE's average acceptance length; plain decoding has 1)."""
        return ratio(self.tokens, self.rounds)

    @property
    def tau_uncut(self) -> float | None:
        """Tokens of whole rounds a round, as EAGLE's code counts: an end of the text cuts nothing off its last round.

        `tau` has what the text has. They differ most where texts are short and rounds long.
        """
        return None if self.uncut is None else ratio(self.uncut, self.rounds)

    @property
    def tau_drafted(self) -> float:
        """Accepted drafts per round (EDD's average acceptance length)."""
        return ratio(self.accepted, self.rounds)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / levels drafted: a chain's usual rate; for trees EDD's, by the deepest level."""
        return ratio(self.accepted, self.levels)

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """n-α (EAGLE, Table 2): among drafts whose predecessors were accepted, the share accepted, from position 0."""
        return tuple(map(ratio, self.accepted_at, self.reached))

    @property
    def draft_share(self) -> float:
        """r_d, the share of the text that was drafted (EESD, appendix D, Eq. 12)."""
        return ratio(self.accepted, self.tokens)

    @property
    def draft_accuracy(self) -> float:
        """v_d, accepted / nodes drafted (EESD, appendix D, Eq. 11)."""
        return ratio(self.accepted, self.drafted)

    @property
    def harmonic_mean(self) -> float:
        """HM of v_d and r_d (EESD, section 4, Metrics)."""
        v, r = self.draft_accuracy, self.draft_share
        return ratio(2 * v * r, v + r)

    @property
    def nodes_per_round(self) -> float:
        """Nodes verified a round, without the root."""
        return ratio(self.verified, self.rounds)

    @property
    def nodes_drafted_per_round(self) -> float:
        """Nodes drafted a round, before pruning."""
        return ratio(self.drafted, self.rounds)

    @property
    def depth_per_round(self) -> float:
        """Deepest live level, mean over rounds."""
        return ratio(self.levels, self.rounds)


def statistics_of(histories: Sequence[RoundCounts]) -> Statistics:
    """Adds up the counts of several texts; rounds in which a row was done are left out."""
    rounds = join(histories)
    positions = range(int(np.max(rounds.levels, initial=0)))

    def total(values: Any) -> int:
        return int(np.sum(values))

    return Statistics(
        tokens=total(rounds.committed),
        uncut=None if rounds.uncut is None else total(rounds.uncut),
        rounds=len(rounds.committed),
        accepted=total(rounds.accepted),
        levels=total(rounds.levels),
        drafted=total(rounds.drafted),
        verified=total(rounds.verified),
        reached=tuple(total((rounds.accepted >= i) & (rounds.levels > i)) for i in positions),
        accepted_at=tuple(total(rounds.accepted > i) for i in positions),
    )


def histogram(values: Sequence[np.ndarray]) -> dict[int, int]:
    """How often each number occurs, by number."""
    found, counts = np.unique(np.concatenate([np.zeros(0, int), *values]), return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def ratio(part: float | int, whole: float | int) -> float:
    """part / whole, 0 where there is no whole."""
    return part / whole if whole else 0.0
