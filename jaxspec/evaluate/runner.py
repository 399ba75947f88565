"""Runs and times all methods on all questions, alternating in one process."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from jaxspec.decoding.request import Request
from jaxspec.decoding.round_records import to_rows
from jaxspec.engine.engine import Engine
from jaxspec.engine.generation import Generation
from jaxspec.engine.requests import encode, warn_if_greedy
from jaxspec.evaluate import quality
from jaxspec.evaluate.questions import Question, next_prompt, read_questions
from jaxspec.evaluate.reliability import tally
from jaxspec.evaluate.runlog import Answer, RunLog, Turn, tree_to_json, with_token_texts
from jaxspec.host import compilation
from jaxspec.host.arguments import integer
from jaxspec.host.compilation import Compilations
from jaxspec.host.processes import largest
from jaxspec.host.terminal import progress, say
from jaxspec.options.by_command import Answers

REFERENCE = "plain"
TIMED = ("jit(embed_chunk)", "jit(run_group)", "jit(end_chunk)", "jit(decode)")  # JAX's names of prefill and the loop
Learnt = list[list[np.ndarray]] | None  # `Turn.learnt`


@dataclasses.dataclass(frozen=True)
class Workload:
    """The questions of a run, and the options for decoding their answers."""

    questions: tuple[Question, ...]
    settings: Answers
    repeats: int

    @classmethod
    def of(cls, settings: Answers, repeats: int = 1) -> "Workload":
        """The workload of a command. Raises ValueError as `read_questions` does."""
        return cls(tuple(read_questions(settings.prompts, settings.limit, settings.shots)), settings, repeats)

    @property
    def batches(self) -> list[range]:
        """The numbers of the questions in each batch."""
        total, size = len(self.questions), self.settings.batch_size
        return [range(at, min(at + size, total)) for at in range(0, total, size)]

    @property
    def suite(self) -> str | None:
        """The published format of the questions; None if they have none, or several."""
        first, *others = {question.suite for question in self.questions}
        return None if others else first

    def request(self, engine: Engine, number: int, answers: Sequence[str]) -> Request:
        """The request of a question's next turn, with the random numbers of prompt `number` in `generate`."""
        chat = self.settings.chat
        prompt = next_prompt(self.questions[number], answers, chat)
        (tokens,) = encode([prompt], engine.model, chat, self.settings.template.format)
        return Request(tokens, self.settings.sampling, number)


def check_counts(settings: Answers, *names: str) -> None:
    """Raises ValueError unless these settings, and the number of new tokens, are whole numbers from 1 on."""
    for name in names:
        integer(name, getattr(settings, name), 1)
    integer("max_new_tokens", settings.sampling.max_new_tokens, 1)


def warn(plan: Workload, engines: Iterable[Engine]) -> None:
    """Warns of missing scorers, of heads trained with other chat arguments, and of sampling settings without effect."""
    warn_if_greedy(plan.settings.sampling)
    suites = dict.fromkeys(question.suite for question in plan.questions)
    for why in filter(None, map(quality.missing, suites)):
        say(why)
    if plan.suite is None and not suites.keys().isdisjoint(quality.CODE):
        say("warning: the questions have several formats, so no file for a scorer of code is written")
    for engine in engines if plan.settings.chat else ():
        engine.warn_of_chat_args(plan.settings.template.format.arguments)


def check(plan: Workload, engine: Engine) -> None:
    """Raises ValueError for a question that is too long for the model, or that cannot be encoded."""
    for number in range(len(plan.questions)):
        if why := too_long(plan, engine, number):
            raise ValueError(f"{why}: shorten the question, lower --max-new-tokens or give fewer --shots")


def too_long(plan: Workload, engine: Engine, number: int) -> str | None:
    """Why a question and its answers are too long for the model; None if they fit. Raises ValueError as `encode`."""
    question, budget = plan.questions[number], plan.settings.sampling.max_new_tokens
    room = engine.model.config.model.usable_length
    name = f"question {number}" + (f" ({question.question_id})" if question.question_id is not None else "")
    try:
        # Earlier answers are not known yet; none is longer than the budget.
        request = plan.request(engine, number, [""] * (len(question.turns) - 1))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    needed = len(request.tokens) + len(question.turns) * budget
    if needed <= room:
        return None
    return (
        f"{name} needs up to {needed} positions (its turns and {budget} new tokens for each) and the model has {room}"
    )


def run(plan: Workload, engines: Mapping[str, Engine], log: RunLog, title: str) -> None:
    """Answers all questions that the log does not have, and shows the progress. `engines` includes the reference."""
    done = {answer.batch for answer in log.answers}
    with progress(title, len(plan.batches)) as shown:
        for batch, numbers in enumerate(plan.batches):
            if batch not in done:
                log.add(run_batch(plan, engines, batch, numbers, log.answers))
            shown.show(batch + 1)


def run_batch(
    plan: Workload, engines: Mapping[str, Engine], batch: int, numbers: Sequence[int], before: Sequence[Answer]
) -> list[Answer]:
    """All turns of a batch of questions, by all methods. The prompts of later turns have the reference's answers.

    `before` are answers of earlier batches. With `keep_state`, each controller resumes from the last turn of its row.
    """
    turns: dict[tuple[int, str], list[Turn]] = {(number, name): [] for number in numbers for name in engines}
    for turn in range(max(len(plan.questions[number].turns) for number in numbers)):
        open_ = [number for number in numbers if turn < len(plan.questions[number].turns)]
        engine, texts = engines[REFERENCE], lambda number: [answer.text for answer in turns[number, REFERENCE]]
        requests = [plan.request(engine, number, texts(number)) for number in open_]
        learnt = {
            name: [_learnt(plan, before, turns[number, name], number, name) for number in open_] for name in engines
        }
        for name, found in measure(engines, requests, plan.repeats, learnt).items():
            for number, answer in zip(open_, found, strict=True):
                answer = dataclasses.replace(answer, asked=plan.questions[number].turns[turn])
                turns[number, name].append(with_token_texts(engine.model.tokenizer, answer))
    answers = []
    for (number, name), found in turns.items():
        question = plan.questions[number]
        score = quality.score(question.suite, found[0].text, question.worked)
        answers.append(Answer(number, question.question_id, question.category, name, batch, found, score))
    return answers


def measure(
    engines: Mapping[str, Engine], requests: list[Request], repeats: int, learnt: Mapping[str, Sequence[Learnt]]
) -> dict[str, list[Turn]]:
    """Runs one batch by all methods, which alternate in each repeat. Its rows start from the states in `learnt`."""
    compilation.make_room(0.5)  # every method may compile programs
    named = {
        key: (name, job)
        for name, engine in engines.items()
        for key, job in engine.compilations(requests, record=True).items()
    }
    Compilations({key: job for key, (_, job) in named.items()}, lambda key: f"{key[0]} of {named[key][0]}").wait()
    passes = [
        {name: warm(engine, requests, [row and row[i] for row in learnt[name]]) for name, engine in engines.items()}
        for i in range(repeats)
    ]
    return {name: [_turn([one[name] for one in passes], row) for row in range(len(requests))] for name in engines}


def warm(engine: Engine, requests: list[Request], learnt: Sequence[Any]) -> list[Generation]:
    """Decodes a batch and records its trees; again if any process compiled something meanwhile."""
    with compilations() as compiled:
        found = engine.run(requests, learnt=learnt, record=True)
    return engine.run(requests, learnt=learnt, record=True) if largest(float(len(compiled))) else found


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Yields a list that has, after the block, the names of programs in `TIMED` that were compiled in it or loaded from
    the disk cache. Other programs do not run while time is measured."""
    names, found = compilation.compiled(), list[str]()
    before = len(names)
    yield found
    found += [name for name in names[before:] if name in TIMED]


def _turn(passes: Sequence[Sequence[Generation]], row: int) -> Turn:
    first = passes[0][row]
    trees = [tree_to_json(round_) for round_ in first.rounds or ()]
    return Turn(
        prompt=first.prompt_tokens,
        tokens=first.tokens,
        text=first.text,
        rounds=to_rows(first.history),
        trees=trees,
        prefill_seconds=[max(text.prefill_seconds for text in texts) for texts in passes],
        decode_seconds=[max(text.decode_seconds for text in texts) for texts in passes],
        learnt=[[leaf.tolist() for leaf in jax.tree.leaves(texts[row].controller)] for texts in passes],
        calibration=tally(trees),
    )


def _learnt(plan: Workload, before: Sequence[Answer], turns: Sequence[Turn], number: int, name: str) -> Learnt:
    """The controller state after a row's last turn, for each repeat; None: a fresh state."""
    size = plan.settings.batch_size
    if not plan.settings.keep_state:
        return None
    earlier = [a.turns[-1] for a in before if a.method == name and a.question % size == number % size]
    last = next(reversed([*earlier, *turns]), None)
    return None if last is None else [[np.asarray(leaf) for leaf in leaves] for leaves in last.learnt]
