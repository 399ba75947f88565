"""`jaxspec demo`: decodes the builtin LLaMA plainly and with drafts."""

import itertools
import shlex
import shutil
import statistics

from rich.console import Console
from rich.text import Text

from jaxspec.checkpoint.builtin import BUILTIN
from jaxspec.checkpoint.loading import load
from jaxspec.engine.engine import Engine
from jaxspec.engine.generation import Generation
from jaxspec.engine.requests import requests_of
from jaxspec.engine.statistics import statistics_of
from jaxspec.evaluate.divergence import diverges
from jaxspec.evaluate.questions import read_questions
from jaxspec.host.compilation import Compilations
from jaxspec.host.terminal import print_table, progress
from jaxspec.model.llama import Llama
from jaxspec.options.by_command import Demo
from jaxspec.report.draft_colours import coloured, has_colours, legend, print_text

# One method beside plain decoding: each adds a quarter to the time of a first run. It is builtin's default.
METHODS = ("plain", "dflash")
NEXT = "def write(self, data):"
PROMPTS = 5  # a single text may repeat itself, which drafts predict well
NEW_TOKENS = 48
REPEATS = 2
EXPLAINED = """The table is of {prompts} prompts. speedup: against plain decoding.
tau: mean tokens per round, which is one forward pass of the model.
divergences: texts that differ from plain decoding's."""


def run(settings: Demo) -> None:
    """Shows a text for the first prompt with its drafts, and compares plain and speculative decoding of several."""
    console = Console(highlight=False)
    console.print("Loading the builtin LLaMA and compiling the decoding loops ...")
    model = load(BUILTIN)
    engines = {name: Engine(model, name) for name in METHODS}
    prompts = [question.turns[0] for question in read_questions(BUILTIN, limit=PROMPTS)]
    requests = requests_of(model, prompts[:1], max_new_tokens=NEW_TOKENS)
    programs = {
        (name, *key): program
        for name, engine in engines.items()
        for key, program in engine.compilations(requests, record=True).items()
    }
    Compilations(programs, lambda key: f"{key[1]} of {key[0]}").wait()
    runs: dict[str, list[list[Generation]]] = {name: [[] for _ in range(1 + REPEATS)] for name in METHODS}
    with progress("generated texts:", (1 + REPEATS) * len(METHODS) * len(prompts)) as shown:
        for i, prompt in itertools.product(range(1 + REPEATS), prompts):
            for name, engine in engines.items():  # taking turns, so that a busy machine slows all
                runs[name][i] += engine.generate(prompt, max_new_tokens=NEW_TOKENS, record=True)
                shown.advance()
    runs = {name: passes[1:] for name, passes in runs.items()}  # the first may still compile something
    plain, best = METHODS
    console.rule(f"Code that the model wrote with {best}")
    print_text(console, Text(prompts[0], "dim"), end="")
    print_text(console, coloured(runs[best][0][0], model.tokenizer, rejected=False))
    if has_colours(console):
        console.print(legend(colours=True).partition(", struck")[0], style="dim")
    console.rule()
    print_table(console, ["method"], ("tokens/s", "speedup", "tau", "divergences"), rows(runs, model.target))
    console.print(EXPLAINED.format(prompts=len(prompts)), style="dim")
    if seconds(runs[best]) > seconds(runs[plain]):
        console.print("Plain decoding was the fastest here. Other work on this machine disturbs such short timings.")
    command = "jaxspec" if shutil.which("jaxspec") else ".venv/bin/jaxspec"
    tried = f"{command} generate --target {BUILTIN} --prompt {shlex.quote(NEXT)} --show-drafts"
    console.print(f"Next, try: {tried}", soft_wrap=True, markup=False)


def seconds(passes: list[list[Generation]]) -> float:
    """The median time of decoding all texts."""
    return statistics.median(sum(text.decode_seconds for text in texts) for texts in passes)


def rows(runs: dict[str, list[list[Generation]]], target: Llama) -> list[tuple[str, ...]]:
    """Name, tokens/s (medians), speedup, tau and divergences of each method against the first; the fastest first."""
    table, reference = [], next(iter(runs.values()))
    plain = [(text.prompt_tokens, text.tokens) for text in reference[0]]
    for name, passes in sorted(runs.items(), key=lambda item: seconds(item[1])):
        counts, speedup = statistics_of([text.history for text in passes[0]]), seconds(reference) / seconds(passes)
        compared = enumerate(zip(plain, passes[0], strict=True))
        gaps = [apart.gap for i, (text, ours) in compared if (apart := diverges(target, i, 0, text, ours.tokens))]
        differ = f"{len(gaps)}, at gaps up to {max(gaps):.1e}" if gaps else "0"
        table.append((name, f"{counts.tokens / seconds(passes):.0f}", f"{speedup:.2f}x", f"{counts.tau:.2f}", differ))
    return table
