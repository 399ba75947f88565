"""A run of `bench` that went to its end, which tests share, and how to run its command again."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxspec.commands.bench import run
from jaxspec.decoding.request import SamplingParams
from jaxspec.options.by_command import Bench
from tests.evaluate import tiny

METHOD = "ngram+chain,length=2"
TURNS, TOKENS = 3, 3 * 39  # in all; the first token of an answer is prefill's
# All prompts, that of the second turn too, have 33 to 64 tokens: one shape, so few compilations.
QUESTIONS = [
    {"turns": ["one two three four one two three four", "and?"], "question_id": 81, "category": "counting"},
    {"prompt": "a prompt that is as long as the first one", "source": "ignored", "answer": "it is"},
]
KEYS = {
    "resolved", "tokens", "rounds", "prefill_seconds", "decode_seconds", "tokens_per_second", "speedup", "tau",
    "tau_drafted", "acceptance_rate", "acceptance_by_position", "draft_accuracy", "draft_share", "harmonic_mean",
    "nodes_per_round", "nodes_drafted_per_round", "depth_per_round", "modelled_speedup", "flat_speedup",
    "predicted_seconds", "eq14_speedup", "draft_cost", "verify_cost", "breakdown", "divergences",
    "unexplained_divergences", "calibration", "expected_calibration_error", "tokens_per_second_mean",
    "tokens_per_second_deviation", "speedup_mean", "speedup_deviation", "categories", "quality", "gigabytes_per_second",
    "speedup_interval", "tau_interval", "tau_uncut", "against_fastest", "unconditional_acceptance_by_position",
}  # fmt: skip
TIMED = {
    "prefill_seconds", "decode_seconds", "tokens_per_second", "speedup", "modelled_speedup", "predicted_seconds",
    "eq14_speedup", "draft_cost", "verify_cost", "breakdown", "tokens_per_second_mean", "tokens_per_second_deviation",
    "speedup_mean", "speedup_deviation", "categories", "gigabytes_per_second",
    "speedup_interval", "against_fastest",
}  # fmt: skip


def changed(command: Bench, **options: Any) -> Bench:
    """The command with other options, those of sampling among them."""
    drawn = {
        field.name: options.pop(field.name) for field in dataclasses.fields(SamplingParams) if field.name in options
    }
    return dataclasses.replace(command, sampling=dataclasses.replace(command.sampling, **drawn), **options)


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that went to its end: the command, and where it wrote."""

    command: Bench
    out: Path

    def __call__(self, out: Path, **changes: Any) -> dict[str, Any]:
        """Runs the same command with another OUT, and whatever else is changed; returns the JSON."""
        run(changed(self.command, json=out, **changes))
        return json.loads(out.read_text(encoding="utf-8"))

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out.read_text(encoding="utf-8"))


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"{out}.jsonl").read_text(encoding="utf-8").splitlines()]


def untimed(results: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in values.items() if key not in TIMED}
        for name, values in results["methods"].items()
    }


class Killed(BaseException):
    """Instead of a signal."""


def finish(folder: Path) -> Finished:
    """Runs it."""
    command = Bench(
        target=tiny.checkpoint(folder / "ckpt"),
        methods=(METHOD,),
        prompts=tiny.prompts(folder / "questions.jsonl", QUESTIONS),
        sampling=SamplingParams(max_new_tokens=40),
        repeats=2,
        json=folder / "out.json",
    )
    run(command)
    return Finished(command, folder / "out.json")
