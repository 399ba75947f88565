"""A case: one method decodes one workload, and its text is compared."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.engine.engine import Engine
from jaxspec.engine.head_weights import load_head
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.evaluate import divergence
from jaxspec.host import compilation
from jaxspec.methods.method import Method, parse_method
from jaxspec.rules import GumbelCoupling
from jaxspec.verify.exact import NOISE_SIZES, explain, places
from jaxspec.verify.workloads import DISTRIBUTION, GREEDY, KINDS, LARGEST_BATCH, PLAIN, SAMPLED, Source, Workload

PLAIN_KEPT = 8  # workloads whose texts by plain decoding are kept, because methods share them
MOST_NUMBERS = 100_000


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        kind: `greedy` and `sampled` texts are compared with plain decoding's text; those of `plain` itself with its
            text in a batch of one. `distribution` is compared with the target's probabilities.
        number: the number of the workload.
    """

    method: str
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.method}/{self.kind}/{self.number}"


def parse_cases(text: str) -> list[Case]:
    """The cases of METHOD/KIND/NUMBERS, such as `ngram+chain/greedy/0-7,9`. Raises ValueError for any other text."""
    match = re.fullmatch(rf"(.+)/({'|'.join(KINDS)})/(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)", text)
    if match is None:
        raise ValueError(f"--only {text}: a case is METHOD/KIND/NUMBER, KIND one of {', '.join(KINDS)}")
    method, kind, numbers = match.groups()
    if kind not in (possible := kinds(parse_method(method))):
        raise ValueError(f"--only {text}: {method} has the kinds {', '.join(possible)}")
    ends = [[int(end) for end in part.split("-")] for part in numbers.split(",")]
    if turned := [each for each in ends if each[0] > each[-1]]:
        first, last = turned[0]
        raise ValueError(f"--only {text}: the range {first}-{last} is empty; write {last}-{first}")
    several = dict.fromkeys(number for each in ends for number in range(each[0], min(each[-1] + 1, MOST_NUMBERS)))
    if not several:
        raise ValueError(f"--only {text}: there is no such number; the largest is {MOST_NUMBERS - 1}")
    return [Case(method, kind, number) for number in several]


def joined(cases: Sequence[Case]) -> str:
    """The text for `parse_cases` of cases of one method and kind."""
    numbers = sorted({case.number for case in cases})
    begins = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    ranges = (f"{a}" if a == b else f"{a}-{b}" for a, b in zip(begins, ends, strict=True))
    return f"{cases[0].method}/{cases[0].kind}/{','.join(ranges)}"


def kinds(method: Method) -> tuple[str, ...]:
    """The kinds of a method's cases.

    With Gumbel coupling, sampled text must equal plain decoding's. With other rules, and for plain decoding itself, the
    distribution is tested.
    """
    if method.drafter.name == PLAIN:
        return KINDS
    return (GREEDY, SAMPLED if isinstance(method.rule(greedy=False), GumbelCoupling) else DISTRIBUTION)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a case: a line of the log.

    Attributes:
        tokens: number of compared tokens, in each text up to its first difference.
        divergences: fields of `Divergence`, and `explained`.
        reread: of plain decoding's greedy texts, read again by forwards over several tokens: compared tokens, and
            texts that differ.
        tenths: number of places in each tenth (see `verdict`); empty except for `distribution`.
        impossible: (prompt, position) of tokens that the target cannot generate there.
        error: the error that the method raised; None without one.
        seconds: time of the case.
    """

    case: Case
    tokens: int = 0
    divergences: Sequence[dict[str, Any]] = ()
    reread: Sequence[int] = (0, 0)
    tenths: Sequence[int] = ()
    impossible: Sequence[Sequence[int]] = ()
    error: str | None = None
    seconds: float = 0.0

    @property
    def faults(self) -> int:
        """Number of divergences and tokens that rounding does not explain."""
        return len(self.impossible) + sum(not each["explained"] for each in self.divergences)

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> "Result":
        """The result in a line of the log."""
        return cls(**{**line, "case": Case(**line["case"])})


class Checker:
    """Runs cases on one target.

    Args:
        source: makes the workloads.
        seed: seed of the workloads.
        noise: rounding noise of the target's logits (`exact.measure_noise`).
    """

    def __init__(self, model: Checkpoint, source: Source, seed: int, noise: float):
        self.model, self.source, self.seed, self.noise = model, source, seed, noise
        self._weights: dict[tuple[str, str | None], Any] = {}
        self.engine = functools.cache(self._engine)
        self.plain_texts = functools.lru_cache(PLAIN_KEPT)(self._plain_texts)

    def check(self, case: Case) -> Result:
        """Runs a case. An error of the method while it decodes becomes part of the result.

        Raises ValueError if the checkpoint lacks weights that the method needs.
        """
        engine = self.engine(case.method)
        try:
            return self._distribution(case, engine) if case.kind == DISTRIBUTION else self._compared(case, engine)
        except Exception as error:
            return Result(case, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")

    def _compared(self, case: Case, engine: Engine) -> Result:
        workload = self.source.workload(self.seed, case.kind, case.number)
        itself = case.method == PLAIN
        expected = self.plain_texts(case.kind, case.number, LARGEST_BATCH if itself else workload.batch_size)
        texts = self.plain_texts(case.kind, case.number, 1) if itself else self._decode(engine, workload)
        tokens, divergences = 0, []
        for prompt, (request, one, other) in enumerate(zip(workload.requests, expected, texts, strict=True)):
            apart = explain(self.engine(PLAIN), request, prompt, one, other, self.noise)
            tokens += len(one) if apart is None else apart.position + 1
            if apart is not None:
                fields = {name: value for name, value in dataclasses.asdict(apart).items() if name != "turn"}
                divergences.append({**fields, "explained": apart.explained(self.noise)})
        reread = self._reread(workload, expected) if itself and case.kind == GREEDY else (0, 0)
        return Result(case, tokens, tuple(divergences), reread)

    def _reread(self, workload: Workload, texts: Sequence[Sequence[int]]) -> tuple[int, int]:
        """Tokens up to the first difference, and texts that differ, if forwards read as many tokens as a small tree."""
        tokens = differ = 0
        with self.model.context():
            for at in range(0, len(texts), LARGEST_BATCH):
                batch = slice(at, at + LARGEST_BATCH)
                pairs = [(one.tokens, text) for one, text in zip(workload.requests[batch], texts[batch], strict=True)]
                again = divergence.reread(self.model.target, pairs, NOISE_SIZES[0])
                tokens += sum(map(len, again))
                differ += sum(list(text) != other for text, other in zip(texts[batch], again, strict=True))
        return tokens, differ

    def _distribution(self, case: Case, engine: Engine) -> Result:
        workload = self.source.workload(self.seed, case.kind, case.number)
        prompts, sampling = zip(*((request.tokens, request.sampling) for request in workload.requests), strict=True)
        texts = list(zip(prompts, self._decode(engine, workload), strict=True))
        draw = np.random.default_rng([self.seed, case.number])
        tenths, impossible = places(self.model, texts, sampling, self.noise, draw)
        return Result(case, sum(tenths), tenths=tenths, impossible=impossible)

    def _plain_texts(self, kind: str, number: int, batch_size: int) -> list[list[int]]:
        workload = self.source.workload(self.seed, kind, number)
        return self._decode(self.engine(PLAIN), dataclasses.replace(workload, batch_size=batch_size))

    def _decode(self, engine: Engine, workload: Workload) -> list[list[int]]:
        """The tokens of every text, with EOS."""
        compilation.make_room(0.5)
        stops = StopStrings(workload.stops, self.model.tokenizer)
        return [result.tokens for result in engine.run(workload.requests, workload.batch_size, stops=stops)]

    def _engine(self, name: str) -> Engine:
        method = parse_method(name)
        key = (str(method.drafter), method.head)
        if key not in self._weights:
            self._weights[key] = load_head(self.model, method)
        return Engine.calibrated(self.model, method, batch_size=LARGEST_BATCH, draft=self._weights[key])
