"""`jaxspec eval`: one method answers a whole suite, in a batch whose rows are refilled."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxspec.engine.engine import Engine
from jaxspec.engine.generation import Generation
from jaxspec.engine.statistics import ratio
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.evaluate import quality, runner, suites
from jaxspec.evaluate.answer_file import AnswerFile
from jaxspec.evaluate.bench import to_json
from jaxspec.evaluate.description import describe_eval
from jaxspec.evaluate.runner import Workload
from jaxspec.evaluate.settings import Eval
from jaxspec.host import environment
from jaxspec.host.arguments import integer
from jaxspec.host.atomic import check_folder, write_whole
from jaxspec.host.processes import is_first
from jaxspec.host.progress import progress
from jaxspec.host.terminal import say

Asked = tuple[int, int]
"""Number of a question, and of its answer (`--samples`)."""


def run(settings: Eval) -> None:
    """Answers the questions without an answer from an earlier run, writes the results and prints them."""
    check(settings)
    mesh = settings.devices.open(several=True)
    questions = tuple(suites.read_questions(settings.prompts, settings.limit, settings.shots))
    together = min(settings.batch_size, len(questions) * settings.samples)
    loading = {"dtype": settings.dtype, "mesh": mesh, "quantize": settings.quantize}
    engine = Engine.calibrated(settings.target, settings.method, batch_size=together, **loading)
    if settings.method is None:
        say(f"method: {engine.method}")
    how = (settings.sampling, settings.batch_size, 1, settings.chat, settings.keep_state, settings.template.format)
    plan = Workload(questions, *how)
    numbers = asked_numbers(plan, engine, settings.skip_long)
    runner.warn(plan, [engine])
    about = describe_eval(settings, plan, engine)
    file = AnswerFile.open(settings.out, about)
    done = {(line["index"], line["sample"]) for line in file.lines}
    if done:
        say(f"answers of an earlier run: {len(done)}")
    asked = [(number, sample) for number in numbers for sample in range(settings.samples)]
    left = [key for key in asked if key not in done]
    began = time.perf_counter()
    with progress("answer", len(asked), len(asked) - len(left)) as shown:
        for line in answered(plan, engine, left, settings):
            file.add(line)
            shown.advance()
    seconds = time.perf_counter() - began
    if not is_first():
        return
    found = {
        "device": environment.device(),
        "versions": environment.versions(),
        "left_out": len(questions) - len(numbers),
        **summary(file.lines, file.lines[len(done) :], seconds),
    }
    if settings.out is not None and questions[0].suite == quality.CODE:
        texts = ((line["question_id"], line["turns"][0]["text"]) for line in file.sorted_lines)
        write_whole(settings.out.with_suffix(".samples.jsonl"), quality.samples(texts))
    file.finish(lambda settings: to_json(settings | found))
    show(found)


def check(settings: Eval) -> None:
    """Raises ValueError for settings that are invalid for any model and questions."""
    for name, value in (
        ("batch_size", settings.batch_size),
        ("samples", settings.samples),
        ("max_new_tokens", settings.sampling.max_new_tokens),
    ):
        integer(name, value, 1)
    if settings.samples > 1 and settings.sampling.temperature == 0:
        raise ValueError(
            "at temperature 0 all answers to a question are equal: --samples needs a --temperature above 0"
        )
    if settings.out is not None:
        check_folder(settings.out)
        if settings.out.suffix != ".jsonl":
            raise ValueError(f"--out must name a .jsonl file, such as {settings.out.with_suffix('.jsonl')}")


def asked_numbers(plan: Workload, engine: Engine, skip_long: bool) -> list[int]:
    """The numbers of the questions to answer. A question that is too long raises ValueError, unless `skip_long`."""
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


def answered(plan: Workload, engine: Engine, asked: Sequence[Asked], settings: Eval) -> Iterator[dict[str, Any]]:
    """Yields the line of each answer, with all its turns, as soon as it is complete.

    The first turns of all questions are decoded together, then the second ones, and so on. Answer i of question n uses
    the random numbers of prompt n * samples + i in `generate`.
    """
    stops = StopStrings(settings.stop, engine.model.tokenizer)
    turns: dict[Asked, list[Generation]] = {key: [] for key in asked}
    for turn in range(max((len(plan.questions[number].turns) for number, _ in asked), default=0)):
        open_ = [key for key in asked if turn < len(plan.questions[key[0]].turns)]
        requests = [
            dataclasses.replace(
                plan.request(engine, number, [each.text for each in turns[number, sample]]),
                index=number * settings.samples + sample,
            )
            for number, sample in open_
        ]
        engine.compile(requests, settings.batch_size)
        for place, found in engine.run_refilled(requests, settings.batch_size, stops, keep_state=settings.keep_state):
            key = open_[place]
            turns[key].append(found)
            if len(turns[key]) == len(plan.questions[key[0]].turns):
                yield line_of(plan, key, turns.pop(key))


def line_of(plan: Workload, asked: Asked, turns: Sequence[Generation]) -> dict[str, Any]:
    """The line of one answer. It holds only values that a repetition would reproduce."""
    number, sample = asked
    question = plan.questions[number]
    kept = [
        {
            "tokens": turn.tokens,
            "text": turn.text,
            "finish_reason": turn.finish_reason,
            "rounds": turn.statistics.rounds,
        }
        for turn in turns
    ]
    return {
        "index": number,
        "sample": sample,
        "question_id": question.question_id,
        "turns": kept,
        "quality": quality.score(question.suite, turns[0].text, question.worked),
    }


def summary(lines: Sequence[Mapping[str, Any]], timed: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """The results.

    Args:
        lines: answers of this run and of the runs that it resumes.
        timed: answers of this run only.
        seconds: time of this run, compilation and prefill included.
    """
    turns = [turn for line in lines for turn in line["turns"]]
    tokens = sum(len(turn["tokens"]) for line in timed for turn in line["turns"])
    return {
        "answers": len(lines),
        "tokens": sum(len(turn["tokens"]) for turn in turns),
        # Prefill makes the first token of each text, so no round does.
        "tau": ratio(sum(len(turn["tokens"]) - 1 for turn in turns), sum(turn["rounds"] for turn in turns)),
        "timed_tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if tokens else None,
        "quality": quality.mean(line["quality"] for line in lines),
    }


def show(found: Mapping[str, Any]) -> None:
    """Prints the results, one per line."""
    lines: dict[str, tuple[Any, Callable[[Any], str]]] = {
        "answers": (found["answers"], str),
        "tokens": (found["tokens"], str),
        "tau": (found["tau"], "{:.2f}".format),
        "tokens/s, with prefill and compilation": (found["tokens_per_second"], "{:.1f}".format),
        **{name: (value, "{:.3f}".format) for name, value in (found["quality"] or {}).items()},
    }
    for name, (value, form) in lines.items():
        if value is not None:
            print(f"{name}: {form(value)}")
