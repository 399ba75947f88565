"""A recorded round, on the host: its tree, what was accepted, what was committed."""

import dataclasses
from typing import Any

import numpy as np

from jaxspec.decoding.round_counts import RoundCounts


@dataclasses.dataclass(frozen=True)
class Round:
    """One round of one sequence. Node 0 is the root; padding is left out.

    Attributes:
        token, parent: [N] int; the root's parent is -1.
        log_confidence: [N] float, log confidence of the path to each node.
        accepted: [N] bool, the root included.
        committed: tokens that the round added to the text. The bonus token is the last, unless the text was cut.
    """

    token: np.ndarray
    parent: np.ndarray
    log_confidence: np.ndarray
    accepted: np.ndarray
    committed: list[int]


def rounds_of(trace: Any, history: RoundCounts, tokens: list[int], begin: int) -> list[Round]:
    """The rounds of one text, from its `Trace` [R N] on the host.

    Args:
        history: counts of each round.
        tokens: prompt and text.
        begin: index of the text in `tokens`.
    """
    at, rounds = begin + 1, []
    for i, committed in enumerate(np.asarray(history.committed).tolist()):
        live = np.flatnonzero(trace.live[i])
        renumber = np.full(trace.live.shape[1] + 1, -1)
        renumber[live] = np.arange(len(live))
        rounds.append(
            Round(
                token=trace.token[i, live],
                parent=renumber[trace.parent[i, live]],
                log_confidence=trace.log_confidence[i, live],
                accepted=trace.on_path[i, live],
                committed=tokens[at : at + committed],
            )
        )
        at += committed
    return rounds
