"""The result of one prompt: its text, and what happened in its rounds."""

import dataclasses
from typing import Any

import numpy as np

from jaxspec.decoding.round_counts import RoundCounts
from jaxspec.engine.recorded_rounds import Round
from jaxspec.engine.statistics import Statistics, statistics_of


@dataclasses.dataclass(frozen=True)
class Generation:
    """One prompt's result.

    Attributes:
        text: the generated text, without special tokens, cut before a stop string.
        tokens: generated token ids, including an EOS.
        finish_reason: `eos`, `length` or `stop`.
        history: counts of each round, [rounds].
        log_probs: [tokens] float, log-probability of each token under the target at temperature 1; None unless
            requested.
        rounds: tree and verdict of every round; None unless recorded.
        prefill_seconds, decode_seconds: times of the batch that contained this prompt.
        controller: the controller's final state: its arrays, without the axis B. It includes rounds after a stop
            string, but not the rounds of other rows.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str
    finish_reason: str
    history: RoundCounts
    log_probs: np.ndarray | None
    rounds: list[Round] | None
    prefill_seconds: float
    decode_seconds: float
    controller: Any

    @property
    def statistics(self) -> Statistics:
        """tau, acceptance and the rest, counted from `history`."""
        return statistics_of([self.history])
