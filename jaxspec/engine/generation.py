"""One prompt's result: its text, and how the rounds got there."""

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
        text: what was generated, without special tokens, cut before a stop string.
        tokens: ids generated, an EOS included.
        finish_reason: `eos`, `length` or `stop`.
        history: what each round came to, [rounds].
        log_probs: [tokens] float, log p of each under the target at temperature 1; None unless asked for.
        rounds: every round's tree and verdict; None unless recorded.
        prefill_seconds, decode_seconds: of the batch that this prompt was in.
        controller: what the controller had learnt at the end: its state's arrays, without the axis B. Rounds past a
            stop string count in it; those of other rows do not.
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
