"""The prompts and sampling settings of a case, all determined by a seed, a kind and a number."""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.engine.requests import encode
from jaxspec.engine.stop_strings import text_of
from jaxspec.evaluate.questions import Question

PLAIN = "plain"
GREEDY, SAMPLED, DISTRIBUTION = KINDS = ("greedy", "sampled", "distribution")
SAME_SHAPE = 4  # consecutive workloads that share their programs, because compiling takes longer than decoding
FIRST_PROMPTS = {GREEDY: 32, SAMPLED: 32, DISTRIBUTION: 64}  # of number 0, a method's first check
LATER_PROMPTS = {GREEDY: 512, SAMPLED: 512, DISTRIBUTION: 256}  # many, since each method is compiled first
TEMPERATURES = (0.3, 0.7, 1.0, 1.0, 1.4)
TOP_P = (1.0, 1.0, 0.95, 0.7)
TOP_K = (0, 0, 0, 40, 5)
LARGEST_BATCH = 8
LONGEST, BUDGETS = (16, 32, 120), (32, 64)  # tokens of the longest prompt, and most new tokens of a text
PLACED = 96  # most new tokens of a text whose tokens are tested against the target's probabilities
FILLED, TRUNCATED = 0.25, 0.75  # shares of workloads with such texts
LONG = 1100  # most new tokens of a text that fills the model's positions; its cache grows past 512 rows


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests, the batch size, and the stop strings."""

    requests: tuple[Request, ...]
    batch_size: int
    stops: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of random prompts.

    Attributes:
        vocab_size: the model's vocabulary size.
        room: most positions of a text.
        texts: the questions as tokens; empty without a tokenizer.
        words: these texts as one string, from which stop strings are cut.
    """

    vocab_size: int
    room: int
    texts: tuple[tuple[int, ...], ...]
    words: str

    @classmethod
    def of(cls, model: Checkpoint, questions: Sequence[Question]) -> "Source":
        """The source for a checkpoint and the questions of a prompt file. Raises ValueError as `encode` does."""
        prompts = [question.turns[0] for question in questions if question.turns[0]]
        texts = tuple(map(tuple, encode(prompts, model, False))) if prompts and model.tokenizer is not None else ()
        words = "".join(text_of(model.tokenizer, list(text), []) for text in texts)
        config = model.config.model
        return cls(config.vocab_size, config.usable_length, texts, words)

    def workload(self, seed: int, kind: str, number: int) -> Workload:
        """The workload of this seed, kind and number.

        What compiled programs depend on is the same for `SAME_SHAPE` consecutive numbers: the rows of the batch (fewer
        than prompts, so that rows are refilled), the tokens of the longest prompt, the most new tokens of a text,
        whether one text may reach the model's last position, and whether some are sampled with top-k and top-p.
        """
        shape = np.random.default_rng([seed, zlib.crc32(kind.encode()), number // SAME_SHAPE, 1])
        placed = kind == DISTRIBUTION
        longest = min(int(shape.choice(LONGEST)), self.room // 3)
        batch_size = LARGEST_BATCH if placed else int(shape.integers(1, LARGEST_BATCH + 1))
        budget = min(PLACED if placed else int(shape.choice(BUDGETS)), self.room - longest)
        fills, truncated = bool(shape.random() < FILLED) and not placed, bool(shape.random() < TRUNCATED)
        prompts = (LATER_PROMPTS if number else FIRST_PROMPTS)[kind]
        draw = np.random.default_rng([seed, zlib.crc32(kind.encode()), number])
        lengths = draw.integers(1, longest + 1, prompts)
        budgets = draw.integers(budget // 2 if placed else 1, budget + 1, prompts)
        lengths[0], budgets[0] = longest, budget  # the programs are compiled for these sizes
        if fills:
            lengths[1], budgets[1] = 1, min(self.room - 1, LONG)
        params = [self._sampling(draw, kind, truncated, i) for i in range(prompts)]
        requests = tuple(
            Request(self._prompt(draw, int(length)), dataclasses.replace(sampling, max_new_tokens=int(each)), index)
            for index, (length, each, sampling) in enumerate(zip(lengths, budgets, params, strict=True))
        )
        return Workload(requests, batch_size, () if placed else self._stops(draw))

    def _prompt(self, draw: np.random.Generator, length: int) -> list[int]:
        """Random tokens, or with probability 1/2 a piece of a question."""
        text = self.texts[draw.integers(len(self.texts))] if self.texts else ()
        if draw.random() < 0.5 or len(text) < length:
            return draw.integers(0, self.vocab_size, length).tolist()
        begin = int(draw.integers(len(text) - length + 1))
        return list(text[begin : begin + length])

    def _sampling(self, draw: np.random.Generator, kind: str, truncated: bool, index: int) -> SamplingParams:
        temperature, top_p = (values[draw.integers(len(values))] for values in (TEMPERATURES, TOP_P))
        top_k = TOP_K[draw.integers(len(TOP_K))]
        if index == 0:
            top_p, top_k = TOP_P[-1], TOP_K[-1]  # at least one text is truncated, because programs depend on that
        if kind == GREEDY or (kind == SAMPLED and draw.random() < 0.1):  # a greedy text among sampled ones
            temperature = 0.0
        if not truncated or kind == GREEDY:
            top_p, top_k = 1.0, 0
        return SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, seed=int(draw.integers(2**31)))

    def _stops(self, draw: np.random.Generator) -> tuple[str, ...]:
        """Up to two strings that may occur in the texts; in most cases none."""
        if draw.random() < 0.7 or len(self.words) < 8:
            return ()
        begins = draw.integers(0, len(self.words) - 7, 2)
        pieces = [self.words[begin : begin + int(draw.integers(3, 8))] for begin in begins]
        return tuple(piece for piece in pieces if piece.strip())  # indentation would end every text of code
