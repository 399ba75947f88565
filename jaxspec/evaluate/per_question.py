"""A method's results for each question, the input of intervals and paired tests."""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxspec.decoding.round_counts import from_rows
from jaxspec.engine.statistics import statistics_of
from jaxspec.evaluate.runlog import Answer
from jaxspec.evaluate.uncertainty import RatioOfSums


@dataclasses.dataclass(frozen=True)
class PerQuestion:
    """Counts and times for each question, summed over its turns.

    Attributes:
        tokens, rounds: numbers of tokens and of rounds.
        seconds: seconds of decoding, medians over the repeats; the rows of a batch share its time evenly.
        batch: the number of the question's batch.
    """

    tokens: Float[np.ndarray, " questions"]
    rounds: Float[np.ndarray, " questions"]
    seconds: Float[np.ndarray, " questions"]
    batch: Int[np.ndarray, " questions"]

    def take(self, at: Int[np.ndarray, " taken"]) -> "PerQuestion":
        """The values of some questions, in the order of the indices `at`."""
        return PerQuestion(**{field.name: getattr(self, field.name)[at] for field in dataclasses.fields(self)})

    @property
    def tau(self) -> RatioOfSums:
        """Tokens per round."""
        return RatioOfSums(self.tokens[:, None], self.rounds[:, None])

    def speed(self, batch: Int[np.ndarray, " questions"]) -> RatioOfSums:
        """Tokens per second. Questions of one batch share its time, so the bootstrap resamples them as one."""
        _, at = np.unique(batch, return_inverse=True)

        def summed(values):
            return np.bincount(at, values)[:, None]

        return RatioOfSums(summed(self.tokens), summed(self.seconds))


def per_question(answers: Sequence[Answer]) -> PerQuestion:
    """The values of one method's answers, in their order."""
    rows = Counter((answer.batch, turn) for answer in answers for turn in range(len(answer.turns)))
    counts = [statistics_of([from_rows(turn.rounds) for turn in answer.turns]) for answer in answers]
    seconds = [
        sum(statistics.median(turn.decode_seconds) / rows[answer.batch, i] for i, turn in enumerate(answer.turns))
        for answer in answers
    ]
    return PerQuestion(
        tokens=np.array([each.tokens for each in counts], float),
        rounds=np.array([each.rounds for each in counts], float),
        seconds=np.array(seconds, float),
        batch=np.array([answer.batch for answer in answers], int),
    )
