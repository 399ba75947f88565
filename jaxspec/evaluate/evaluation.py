"""`jaxspec eval`: one method answers a whole suite with continuous batching. `OUT.jsonl` holds the answers, sorted at
the end. `OUT.json` holds the settings from the start, to recognise a killed run, and the results at the end.
"""

import dataclasses
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from jaxspec.engine.engine import Engine
from jaxspec.engine.generation import Generation
from jaxspec.engine.statistics import ratio
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.evaluate import quality, runner
from jaxspec.evaluate.bench import to_json
from jaxspec.evaluate.run_description import describe_eval
from jaxspec.evaluate.runner import Workload
from jaxspec.host import environment
from jaxspec.host.atomic import check_apart, check_folder, check_new, check_ours, write_whole
from jaxspec.host.json_lines import append_lines, check_same_settings, to_line
from jaxspec.host.processes import broadcast_from_first, is_first
from jaxspec.host.terminal import progress, say
from jaxspec.options.by_command import Eval, Merge

Asked = tuple[int, int]  # numbers of a question and of one of its answers (`--samples`)
asked_of = itemgetter("index", "sample")  # of a line
OF_MACHINES = ("target", "prompts", "shard")
"""Settings that may differ between shards, because machines have other paths; hashes are compared instead."""


def parse_shard(text: str) -> tuple[int, int]:
    """Reads I/N, the questions I - 1, I - 1 + N, … Raises ValueError for other text, and unless I is from 1 to N."""
    found = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"--shard must be I/N with I from 1 to N, such as 1/4, not {text!r}")
    return int(found[1]), int(found[2])


def run(settings: Eval) -> None:
    """Answers the questions that an earlier run did not answer, writes the results and prints them.

    Raises ValueError if there are any with `keep_state`, because what controllers had learnt is not stored.
    """
    check(settings)
    mesh = settings.devices.open(several=True)
    plan = Workload.of(settings)
    together = min(settings.batch_size, len(plan.questions) * settings.samples)
    loading = {"dtype": settings.dtype, "mesh": mesh, "quantize": settings.quantize}
    ours = numbers_of(len(plan.questions), settings.shard)
    engine = Engine.calibrated(settings.target, settings.method, batch_size=together, **loading)
    numbers = [number for number in asked_numbers(plan, engine, settings.skip_long) if number in ours]
    runner.warn(plan, [engine])
    about, out = describe_eval(settings, plan, engine), settings.out
    asked = [(number, sample) for number in numbers for sample in range(settings.samples)]
    lines, before = ([], {}) if out is None else broadcast_from_first(lambda: resume(out, about, asked))
    done = set(map(asked_of, lines))
    if done:
        say(f"answers of an earlier run: {len(done)}")
    left = [key for key in asked if key not in done]
    if settings.keep_state and done and left:
        raise ValueError(
            f"{out} holds the answers of a run that was not finished, and with --keep-state further answers depend on "
            "what that run had learnt; delete it or choose another --out"
        )
    began = time.perf_counter()
    with progress("answer", len(asked), len(asked) - len(left)) as shown:
        for line in answered(plan, engine, left, settings):
            lines.append(line)
            if out is not None and is_first():
                append_lines(out, [line])
            shown.advance()
    seconds = time.perf_counter() - began
    if not is_first():
        return
    found = {
        "device": environment.device(),
        "versions": environment.versions(),
        "resolved": str(engine.method),
        "left_out": len(ours) - len(numbers),
        **summary(lines, lines[len(done) :], seconds),
        **({} if left else before),  # nothing was timed now
    }
    if out is not None:
        write(out, lines, about, found)
    show(found)


def numbers_of(total: int, shard: str | None) -> range:
    """The numbers of the questions of a shard; all without one. Raises ValueError if there are fewer than shards."""
    number, count = parse_shard(shard or "1/1")
    if count > total:
        raise ValueError(f"--shard {shard} splits {total} questions into more shards than there are")
    return range(number - 1, total, count)


def write(out: Path, lines: list[dict[str, Any]], about: dict[str, Any], found: dict[str, Any]) -> None:
    """Writes the sorted answers, the results, and for a suite of code the scorer's input."""
    lines.sort(key=asked_of)
    write_whole(out, "".join(map(to_line, lines)))
    write_whole(out.with_suffix(".json"), to_json(about | found))
    if (suite := about["settings"]["suite"]) in quality.CODE:
        texts = ((line["question_id"], line["turns"][0]["text"]) for line in lines)
        write_whole(out.with_suffix(".samples.jsonl"), quality.samples(suite, texts))


def check(settings: Eval) -> None:
    """Raises ValueError for settings that are invalid for any model and questions."""
    runner.check_counts(settings, "batch_size", "samples")
    if settings.samples > 1 and settings.sampling.temperature == 0:
        raise ValueError("at temperature 0 all answers are equal: --samples needs a --temperature above 0")
    if settings.shard is not None and settings.keep_state:
        raise ValueError("with --keep-state an answer's rounds depend on earlier questions, so leave out --shard")
    if settings.out is not None:
        check_out(settings.out)
        check_apart(settings.out, settings.prompts)
        check_ours(settings.out.with_suffix(".samples.jsonl"), settings.out)


def check_out(out: Path) -> None:
    """Raises ValueError unless answers can be written to this file, and results beside it."""
    check_folder(out)
    if out.suffix != ".jsonl":
        raise ValueError(f"--out must name a .jsonl file, such as {out.with_suffix('.jsonl')}")


def asked_numbers(plan: Workload, engine: Engine, skip_long: bool) -> list[int]:
    """The numbers of the questions to answer. A question that is too long raises ValueError, unless `skip_long`."""
    if not skip_long:
        runner.check(plan, engine)
        return list(range(len(plan.questions)))
    reasons = [runner.too_long(plan, engine, number) for number in range(len(plan.questions))]
    for why in filter(None, reasons):
        say(f"left out: {why}")
    if all(reasons):
        raise ValueError("every question is too long for this model")
    return [number for number, why in enumerate(reasons) if why is None]


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
        for place, found in engine.decode(requests, settings.batch_size, stops, keep_state=settings.keep_state):
            key = open_[place]
            turns[key].append(found)
            if len(turns[key]) == len(plan.questions[key[0]].turns):
                yield line_of(plan, key, turns.pop(key))


def line_of(plan: Workload, asked: Asked, turns: Sequence[Generation]) -> dict[str, Any]:
    """The line of one answer. It holds only values that a repetition would reproduce."""
    number, sample = asked
    question, kept = plan.questions[number], ("tokens", "text", "finish_reason")
    return {
        "index": number,
        "sample": sample,
        "question_id": question.question_id,
        "turns": [{**{name: getattr(turn, name) for name in kept}, "rounds": turn.statistics.rounds} for turn in turns],
        "quality": quality.score(question.suite, turns[0].text, question.worked),
    }


TIMES = ("timed_tokens", "seconds", "tokens_per_second")  # keys of the results


def summary(lines: Sequence[Mapping[str, Any]], timed: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """The results, from all answers, and those of this run with its seconds, compilation and prefill included."""
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
    print(f"answers: {found['answers']}\ntokens: {found['tokens']}\ntau: {found['tau']:.2f}")
    if (speed := found["tokens_per_second"]) is not None:
        print(f"tokens/s, with prefill and compilation: {speed:.1f}")
    for name, value in (found["quality"] or {}).items():
        print(f"{name}: {value:.3f}")


def resume(path: Path, settings: dict[str, Any], asked: Sequence[Asked]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The answers of an earlier run, without an incomplete last line, and its speed (TIMES) if it was finished.
    Rewrites both files with these answers. Raises ValueError if they belong to another run, are not of `eval`, or were
    changed: an answer is there twice, or is not one of `asked`."""
    beside, lines, speed = path.with_suffix(".json"), list[dict[str, Any]](), dict[str, Any]()
    if path.exists() or beside.exists():
        values, lines = read_results(path, "`jaxspec eval`: choose another --out")
        check_same_settings(path, values["settings"], settings["settings"], "another --out")
        found = list(map(asked_of, lines))
        if len(set(found)) < len(found) or not set(asked).issuperset(found):
            raise ValueError(f"{path} was changed: its answers are not those of this run; choose another --out")
        speed = {name: values[name] for name in TIMES if name in values}
    write_whole(beside, to_json(settings | speed))
    write_whole(path, "".join(map(to_line, lines)))
    return lines, speed


def read_results(file: Path, expected: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the file beside a file of answers holds, and the lines of complete answers, none if there is no such file.

    Raises ValueError that these are not results of what was `expected`.
    """
    beside = file.with_suffix(".json")
    try:
        values = json.loads(beside.read_text(encoding="utf-8"))
        *ended, _ = (file.read_text(encoding="utf-8") if file.exists() else "").split("\n")
        lines = [json.loads(line) for line in ended]
        are_answers = all({"index", "sample", "turns"} <= line.keys() for line in lines)
        if not (are_answers and isinstance(values["settings"], dict)):
            raise ValueError("no settings, or a line is not an answer")
        summary(lines, [], 0.0)  # raises KeyError or TypeError for answers of another version
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} and {beside.name} beside it are not results of {expected}") from error
    return values, lines


@dataclasses.dataclass(frozen=True)
class Finished:
    """A finished shard: its file of answers, its number of `count`, what the file beside it holds, and the answers."""

    file: Path
    number: int
    count: int
    found: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def settings(self) -> dict[str, Any]:
        return self.found["settings"]


def merge(settings: Merge) -> None:
    """Writes the answers of all shards, as one machine would have, with their results, and prints these.

    Raises ValueError if a shard is missing, twice there, not finished, or of another evaluation, or an output exists.
    """
    out = settings.out
    if not settings.merge:
        raise ValueError("name the files that all shards have written after --merge")
    check_out(out)
    outputs = (out, out.with_suffix(".json"), out.with_suffix(".samples.jsonl"))
    for file in outputs:
        check_new(file)
    shards = [read_shard(file) for file in settings.merge]
    check_one_evaluation(shards)
    shards.sort(key=lambda each: each.number)
    lines = [line for each in shards for line in each.lines]
    # Seconds are summed over machines, so the speed is the mean of one machine.
    tokens, seconds = (sum(each.found[name] for each in shards) for name in ("timed_tokens", "seconds"))
    speed = {"timed_tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds if tokens else None}
    found = {**places(shards), **summary(lines, [], 0.0), **speed}
    try:
        write(out, lines, {"settings": {**shards[0].settings, "shard": None}}, found)
    except BaseException:  # a full disk, or Ctrl-C
        for file in outputs:
            file.unlink(missing_ok=True)
        raise
    show(found)


def read_shard(file: Path) -> Finished:
    """The results in a shard's file of answers and in the one beside it. Raises ValueError as `merge`."""
    if not file.exists():
        raise ValueError(f"there is no {file}; name the files that `jaxspec eval --shard` has written by --out")
    values, lines = read_results(file, "`jaxspec eval --shard`")
    if (part := values["settings"].get("shard")) is None:
        raise ValueError(f"{file} holds the answers of a whole evaluation and not of a shard; leave it out")
    (number, count), asked = parse_shard(str(part)), list(map(asked_of, lines))
    if not values.keys() >= {"answers", "device", "versions", "left_out", *TIMES}:
        raise ValueError(f"shard {part} in {file} is not finished; run its command again")
    ours = range(number - 1, values["settings"].get("questions", 0), count)
    wrong = any(question not in ours for question, _ in asked)
    if wrong or len(set(asked)) != values["answers"] or len(asked) != values["answers"]:
        raise ValueError(f"{file} was changed: its answers are not those of shard {part}; run its command again")
    return Finished(file, number, count, values, lines)


def check_one_evaluation(shards: Sequence[Finished]) -> None:
    """Raises ValueError unless the shards are all those of one evaluation, each once."""
    first, by_number = shards[0], dict[int, Finished]()
    for each in shards:
        ours, theirs = first.settings["shard"], each.settings["shard"]
        if each.count != first.count:
            raise ValueError(f"{first.file} is shard {ours}, and {each.file} is shard {theirs}")
        if (other := by_number.setdefault(each.number, each)) is not each:
            raise ValueError(f"{other.file} and {each.file} are both shard {theirs}; name one of them")
        for name in sorted((first.settings.keys() | each.settings.keys()) - {*OF_MACHINES}):
            if (ours := first.settings.get(name)) != (theirs := each.settings.get(name)):
                raise ValueError(
                    f"{first.file} and {each.file} are of different evaluations: {name} is {ours} there and {theirs} "
                    "here"
                )
    if missing := [number for number in range(1, first.count + 1) if number not in by_number]:
        raise ValueError(f"shard {missing[0]}/{first.count} is missing: name the files of all shards")


def places(shards: Sequence[Finished]) -> dict[str, Any]:
    """Where the shards ran; several values of a key are joined by commas."""
    of = lambda name: ", ".join(dict.fromkeys(each.found["versions"].get(name, "") for each in shards))
    return {
        "device": ", ".join(dict.fromkeys(each.found["device"] for each in shards)),
        "versions": {name: of(name) for name in shards[0].found["versions"]},
        "resolved": ", ".join(dict.fromkeys(each.found.get("resolved", "") for each in shards)),
        "left_out": sum(each.found["left_out"] for each in shards),
    }
