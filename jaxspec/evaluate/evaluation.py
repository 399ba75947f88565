"""What `jaxspec eval` does: one method answers a whole suite in refilled rows."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxspec.engine.engine import Engine
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.evaluate import quality, runner, suites
from jaxspec.evaluate.bench import to_json
from jaxspec.evaluate.description import describe_eval
from jaxspec.evaluate.results import counts_of
from jaxspec.evaluate.runlog import Answer, RunLog, Turn, log_of
from jaxspec.evaluate.runner import Workload, turn_of
from jaxspec.evaluate.settings import Eval
from jaxspec.host import environment
from jaxspec.host.atomic import check_folder, write_whole
from jaxspec.host.processes import agreed, is_first
from jaxspec.host.progress import progress
from jaxspec.host.terminal import say

Asked = tuple[int, int]
"""Number of a question, and of the answer to it."""


def run(settings: Eval) -> None:
    """Answers the questions that an earlier run has not, writes the results and prints them."""
    check(settings)
    questions = tuple(suites.read_questions(settings.prompts, settings.limit, settings.shots))
    mesh = settings.devices.open(several=True)
    engine = Engine.calibrated(
        settings.target, settings.method, dtype=settings.dtype, mesh=mesh, quantize=settings.quantize
    )
    if settings.method is None:
        say(f"method: {engine.method}")
    plan = Workload(questions, settings.sampling, settings.batch_size, 1, settings.chat, settings.keep_state)
    numbers = asked_numbers(plan, engine, settings.skip_long)
    about = describe_eval(settings, plan, engine)
    log = RunLog(
        log_of(settings.out) if settings.out is not None and is_first() else None,
        about,
        lambda answers: len(answers) == settings.samples,
    )
    done = set(json.loads(agreed(json.dumps(sorted({answer.question for answer in log.answers})))))
    if done:
        say(f"questions already answered by an earlier run: {len(done)}")
    began, before = time.perf_counter(), len(log.answers)
    left = [number for number in numbers if number not in done]
    with progress("question", len(numbers), len(done)) as shown:
        for answers in answered(plan, engine, left, settings):
            log.add(answers)
            shown.advance()
    seconds = time.perf_counter() - began
    if not is_first():
        return
    found = about | summary(log.answers, log.answers[before:], seconds) | {"left_out": len(questions) - len(numbers)}
    if settings.out is not None:
        if questions[0].suite == quality.CODE:
            write_whole(settings.out.with_suffix(".samples.jsonl"), quality.samples(log.answers))
        write_whole(
            settings.out, to_json({"device": environment.device(), "versions": environment.versions(), **found})
        )
    show(found)


def check(settings: Eval) -> None:
    """Raises ValueError for a setting that is wrong whatever the model and the questions are."""
    for name in ("batch_size", "samples"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(settings, name)}")
    if settings.samples > 1 and settings.sampling.temperature == 0:
        raise ValueError("at temperature 0 all answers to a question are the same: give a --temperature for --samples")
    if settings.out is not None:
        check_folder(settings.out)
        if settings.out.suffix == ".jsonl":
            raise ValueError(f"--out names a file of JSON, such as {settings.out.with_suffix('.json')}")


def asked_numbers(plan: Workload, engine: Engine, skip_long: bool) -> list[int]:
    """The questions that the model has room for. Raises ValueError for another, unless it may be left out."""
    if not skip_long:
        runner.check(plan, engine)
        return list(range(len(plan.questions)))
    kept = []
    for number in range(len(plan.questions)):
        if why := runner.too_long(plan, engine, number):
            say(f"left out: {why}")
        else:
            kept.append(number)
    if not kept:
        raise ValueError("every question is too long for this model")
    return kept


def answered(plan: Workload, engine: Engine, numbers: list[int], settings: Eval) -> Iterator[list[Answer]]:
    """Yields the answers to each question, with all turns, as they are done.

    First turns of all questions are decoded together, then second ones, and so on. Answer i of question n draws as
    `generate` would for prompt n * samples + i.
    """
    stops = StopStrings(settings.stop, engine.model.tokenizer)
    turns: dict[Asked, list[Turn]] = {(n, sample): [] for n in numbers for sample in range(settings.samples)}
    for turn in range(max((len(plan.questions[n].turns) for n in numbers), default=0)):
        asked = [key for key in turns if turn < len(plan.questions[key[0]].turns)]
        requests = [
            dataclasses.replace(
                plan.request(engine, number, [each.text for each in turns[number, sample]]),
                index=number * settings.samples + sample,
            )
            for number, sample in asked
        ]
        engine.compile(requests, settings.batch_size)
        for place, found in engine.run_refilled(requests, settings.batch_size, stops, keep_state=settings.keep_state):
            number, _ = asked[place]
            said = plan.questions[number].turns[turn]
            turns[asked[place]].append(dataclasses.replace(turn_of([found]), asked=said, trees=None, learnt=[]))
            of_question = [turns[number, sample] for sample in range(settings.samples)]
            if all(len(each) == len(plan.questions[number].turns) for each in of_question):
                yield [_answer(plan, engine, number, sample, each) for sample, each in enumerate(of_question)]


def _answer(plan: Workload, engine: Engine, number: int, sample: int, turns: list[Turn]) -> Answer:
    question = plan.questions[number]
    return Answer(
        question=number,
        question_id=question.question_id,
        category=question.category,
        method=str(engine.method),
        batch=number,
        turns=turns,
        quality=quality.score(question.suite, turns[0].text, question.worked),
        sample=sample,
    )


def summary(answers: list[Answer], timed: list[Answer], seconds: float) -> dict[str, Any]:
    """The results.

    Args:
        answers: of this run and of those that it resumes.
        timed: of this run alone, in so many seconds, compilation and prefill among them.
    """
    tokens = tokens_of(timed)
    return {
        "answers": len(answers),
        "quality": quality.mean(answer.quality for answer in answers),
        **counts_of(answers),
        "generated_tokens": tokens_of(answers),
        "timed_tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if tokens else None,
    }


def tokens_of(answers: list[Answer]) -> int:
    """Tokens of all turns."""
    return sum(len(turn.tokens) for answer in answers for turn in answer.turns)


def show(found: Mapping[str, Any]) -> None:
    """Prints the results, a line each."""
    lines: dict[str, tuple[Any, Callable[[Any], str]]] = {
        "answers": (found["answers"], str),
        "tokens": (found["generated_tokens"], str),
        "tau": (found["tau"], "{:.2f}".format),
        "tokens/s, with prefill and compilation": (found["tokens_per_second"], "{:.1f}".format),
        **{name: (value, "{:.3f}".format) for name, value in (found["quality"] or {}).items()},
    }
    for name, (value, form) in lines.items():
        if value is not None:
            print(f"{name}: {form(value)}")
