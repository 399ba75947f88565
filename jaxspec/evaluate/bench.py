"""The command `jaxspec bench`: methods side by side on the same questions."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jaxspec.engine import Engine
from jaxspec.evaluate import cost, divergence, environment, results, runner, suites, table
from jaxspec.evaluate.results import Measured
from jaxspec.evaluate.runlog import RunLog, write_whole
from jaxspec.evaluate.runner import REFERENCE, Plan
from jaxspec.loading import load
from jaxspec.methods import parse_method

NOISE_BATCHES = 4  # the noise of rounding is measured on the texts of this many batches


@dataclasses.dataclass(frozen=True)
class Bench:
    """Time methods against plain decoding on a file of prompts, all in one process and taking turns.

    For example: jaxspec bench --target tinyllama --methods ngram draft-model+chain --prompts questions.jsonl
    """

    target: Path
    """Checkpoint that `jaxspec-convert llama` made."""
    methods: tuple[str, ...]
    """Methods DRAFTER[@HEAD][+BUILDER][+CONTROLLER]; `plain`, the reference, always runs too."""
    prompts: Path
    """JSONL file of questions: {"turns": [...]} or {"prompt": ...} a line."""
    limit: int | None = None
    """Take only the first questions."""
    max_new_tokens: int = 128
    """Tokens generated for each turn, at most."""
    temperature: float = 0.0
    """0 is greedy, and then every text is compared with plain decoding's."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that make up this probability; 1: from all."""
    top_k: int = 0
    """Sample from this many likeliest tokens; 0: from all."""
    seed: int = 0
    """Of the sampling."""
    batch_size: int = 1
    """Questions decoded together."""
    repeats: int = 3
    """Timed passes of every method over every question; times are medians."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    json: Path | None = None
    """Write the results here, and beside it, in OUT.jsonl, every answer as it comes; a killed run resumes from it."""
    chat: bool = False
    """Put the turns through the tokenizer's chat template."""

    def run(self) -> None:
        console = Console(stderr=True)
        asked = dict.fromkeys(self.methods)
        if not asked:
            raise ValueError("name at least one method")
        if REFERENCE not in asked:
            console.print(f"{REFERENCE} runs too: it is what the others are measured against")
        methods = {name: parse_method(name) for name in (REFERENCE, *asked)}
        questions = tuple(suites.read_questions(self.prompts, self.limit))
        if self.json is not None and not self.json.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {self.json.absolute().parent} to write {self.json.name} into")

        model = load(self.target, self.dtype)
        engines = {name: Engine(model, method) for name, method in methods.items()}
        plan = Plan(
            questions=questions,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            batch_size=self.batch_size,
            repeats=self.repeats,
            chat=self.chat,
        )
        runner.check(plan, engines[REFERENCE])

        about = self._about(plan, engines)
        is_whole = lambda answers: len(answers) == len(plan.batches[answers[0].batch]) * len(engines)
        log = RunLog(None if self.json is None else Path(f"{self.json}.jsonl"), about, is_whole)
        if log.answers:
            console.print(f"questions already answered by an earlier run: {len(log.answers) // len(engines)}")
        with progress(len(plan.batches), console) as advance:
            runner.run(plan, engines, log, advance)
        if log.measured is None:
            log.finish(dataclasses.asdict(measure(plan, engines, log)))
        assert log.measured is not None
        measured = Measured(**log.measured)
        verified = {name: (str(engine.method), _sizes(plan, engine)) for name, engine in engines.items()}
        found = results.tally(log.answers, measured, verified)
        if self.json is not None:
            write_whole(self.json, json.dumps({**about, "noise": measured.noise, "methods": found}, indent=2) + "\n")
        table.show(found, Console())

    def _about(self, plan: Plan, engines: Mapping[str, Engine]) -> dict[str, Any]:
        """All that the numbers depend on: device, dtype, versions and settings of the JSON."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del settings["json"], settings["dtype"]
        config = engines[REFERENCE].model.path / "config.json"
        return {
            "device": environment.device(),
            "dtype": str(engines[REFERENCE].model.target.norm[...].dtype),
            "versions": environment.versions(),
            "settings": {
                **settings,
                "target": str(self.target),
                "target_sha256": hashlib.sha256(config.read_bytes()).hexdigest(),
                "methods": list(engines),
                "resolved": [str(engine.method) for engine in engines.values()],
                "prompts": str(self.prompts),
                "questions": len(plan.questions),
                "questions_sha256": hashlib.sha256(repr([q.turns for q in plan.questions]).encode()).hexdigest(),
            },
        }


def measure(plan: Plan, engines: Mapping[str, Engine], log: RunLog) -> Measured:
    """What a run measures besides its answers: costs, noise, divergences."""
    engine = engines[REFERENCE]
    target = engine.model.target
    plain = {answer.question: answer for answer in log.answers if answer.method == REFERENCE}
    longest = max(plan.batches, key=lambda batch: max(len(turn.prompt) for n in batch for turn in plain[n].turns))
    costs = cost.measure(engines, [plan.request(engine, number, ()) for number in longest])
    sizes = {size for each in engines.values() for size in _sizes(plan, each)}
    first = [[(plain[n].turns[0].prompt, plain[n].turns[0].tokens) for n in batch] for batch in plan.batches]
    with engine.precision():
        noise = divergence.noise(target, first[:NOISE_BATCHES], sizes)
    divergences: dict[str, list[dict[str, Any]] | None] = dict.fromkeys(engines)
    if plan.temperature == 0:
        for name in engines:
            found = (
                divergence.diverges(target, answer.question, i, (turn.prompt, turn.tokens), ours.tokens)
                for answer in log.answers
                if answer.method == name
                for i, (turn, ours) in enumerate(zip(plain[answer.question].turns, answer.turns, strict=True))
            )
            divergences[name] = [{**dataclasses.asdict(d), "explained": d.explained(noise)} for d in found if d]
    return Measured(
        noise=noise,
        target_seconds={str(size): seconds for size, seconds in costs.target.items()},
        level_seconds=dict(costs.level),
        divergences=divergences,
    )


@contextlib.contextmanager
def progress(total: int, console: Console) -> Iterator[Callable[[], None]]:
    """Yields what to call after each batch: a bar on a terminal, a line elsewhere."""
    if not console.is_terminal:
        done = iter(range(1, total + 1))
        yield lambda: console.print(f"batch {next(done)} of {total}", highlight=False)
        return
    columns = (TextColumn("questions"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("questions", total=total)
        yield lambda: bar.advance(task)


def _sizes(plan: Plan, engine: Engine) -> tuple[int, ...]:
    """Tree sizes that this run verifies."""
    return engine.method.speculation(plan.temperature == 0, tree_sizes=engine.tree_sizes).verify_sizes
