"""The papers' metrics, each defined once, computed from histories of rounds."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxspec.decoding.round_records import RoundCounts, join


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Totals over the rounds of one or several texts. The first token of a text, from prefill, is not counted."""

    tokens: int  # committed tokens
    uncut: int  # tokens of whole rounds (see `RoundCounts.uncut`)
    rounds: int
    accepted: int  # accepted drafts
    levels: int  # drafted levels: depth of the deepest live node of each round
    drafted: int  # drafted nodes, before pruning
    verified: int  # verified nodes, without roots
    reached: tuple[int, ...]  # [i]: rounds with a draft at position i whose first i drafts were accepted
    accepted_at: tuple[int, ...]  # [i]: those whose draft at position i was accepted

    @property
    def tau(self) -> float:
        """Tokens per round, with the bonus token (EAGLE's average acceptance length); 1 for plain decoding."""
        return ratio(self.tokens, self.rounds)

    @property
    def tau_uncut(self) -> float:
        """Tokens per round as EAGLE's code counts them: the last round of a text is not cut at the text's end.

        `tau` counts the text's tokens. The two differ most for short texts and long rounds.
        """
        return ratio(self.uncut, self.rounds)

    @property
    def tau_drafted(self) -> float:
        """Accepted drafts per round (EDD's average acceptance length)."""
        return ratio(self.accepted, self.rounds)

    @property
    def acceptance_rate(self) -> float:
        """Accepted drafts / drafted levels: a chain's usual acceptance rate; for trees, EDD's."""
        return ratio(self.accepted, self.levels)

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """n-α (EAGLE, Table 2): by position from 0, the share of drafts accepted if all drafts before were."""
        return tuple(map(ratio, self.accepted_at, self.reached))

    @property
    def unconditional_acceptance_by_position(self) -> tuple[float, ...]:
        """vLLM's acceptance rate by position: of the rounds that drafted, the share that accepted position i (from 0).

        1 plus their sum is vLLM's mean acceptance length.
        """
        return tuple(ratio(count, self.reached[0]) for count in self.accepted_at)

    @property
    def draft_share(self) -> float:
        """r_d, the share of tokens that are accepted drafts (EESD, appendix D, Eq. 12)."""
        return ratio(self.accepted, self.tokens)

    @property
    def draft_accuracy(self) -> float:
        """v_d, accepted drafts / drafted nodes (EESD, appendix D, Eq. 11)."""
        return ratio(self.accepted, self.drafted)

    @property
    def harmonic_mean(self) -> float:
        """HM, the harmonic mean of v_d and r_d (EESD, section 4, Metrics)."""
        v, r = self.draft_accuracy, self.draft_share
        return ratio(2 * v * r, v + r)

    @property
    def nodes_per_round(self) -> float:
        """Verified nodes per round, without the root."""
        return ratio(self.verified, self.rounds)

    @property
    def nodes_drafted_per_round(self) -> float:
        """Drafted nodes per round, before pruning."""
        return ratio(self.drafted, self.rounds)

    @property
    def depth_per_round(self) -> float:
        """Drafted levels per round."""
        return ratio(self.levels, self.rounds)


def statistics_of(histories: Sequence[RoundCounts]) -> Statistics:
    """Adds up the counts of several texts, without empty rounds of finished rows."""
    rounds = join(histories)
    positions = range(int(np.max(rounds.levels, initial=0)))
    total = lambda values: int(np.sum(values))
    return Statistics(
        tokens=total(rounds.committed),
        uncut=total(rounds.uncut),
        rounds=len(rounds.committed),
        accepted=total(rounds.accepted),
        levels=total(rounds.levels),
        drafted=total(rounds.drafted),
        verified=total(rounds.verified),
        reached=tuple(total((rounds.accepted >= i) & (rounds.levels > i)) for i in positions),
        accepted_at=tuple(total(rounds.accepted > i) for i in positions),
    )


def ratio(part: float | int, whole: float | int) -> float:
    """part / whole; 0 if whole is 0."""
    return part / whole if whole else 0.0
