"""`jaxspec demo`: decodes the builtin LLaMA plainly and with drafts."""

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
from jaxspec.evaluate.divergence import diverges
from jaxspec.evaluate.questions import read_questions
from jaxspec.evaluate.table import print_table
from jaxspec.host.compilation import Compilations
from jaxspec.host.terminal import progress
from jaxspec.model.llama import Llama
from jaxspec.options.by_command import Demo
from jaxspec.report.draft_colours import coloured, has_colours, legend, print_text

# One method beside plain decoding: each adds a quarter to the time of a first run. It is builtin's default.
METHODS = ("plain", "dflash")
NEXT = "def write(self, data):"
NEW_TOKENS = 80  # the builtin model repeats itself in longer texts
REPEATS = 3
EXPLAINED = """speedup: against plain decoding. tau: mean tokens per round, which is one forward pass of the model.
divergences: texts that differ from plain decoding's."""


def run(settings: Demo) -> None:
    """Shows a text for builtin's first prompt with its drafts, and prints a table of plain and speculative decoding."""
    console = Console(highlight=False)
    console.print("Loading the builtin LLaMA and compiling the decoding loops ...")
    model = load(BUILTIN)
    engines = {name: Engine(model, name) for name in METHODS}
    prompt = read_questions(BUILTIN, limit=1)[0].turns[0]
    requests = requests_of(model, [prompt], max_new_tokens=NEW_TOKENS)
    programs = {
        (name, *key): program
        for name, engine in engines.items()
        for key, program in engine.compilations(requests, record=True).items()
    }
    Compilations(programs, lambda key: f"{key[1]} of {key[0]}").wait()
    runs: dict[str, list[Generation]] = {name: [] for name in METHODS}
    with progress("generated texts:", (1 + REPEATS) * len(METHODS)) as shown:
        for _ in range(1 + REPEATS):  # taking turns, so that a busy machine slows all
            for name, engine in engines.items():
                runs[name] += engine.generate(prompt, max_new_tokens=NEW_TOKENS, record=True)
                shown.advance()
    runs = {name: found[1:] for name, found in runs.items()}  # the first may still compile something
    plain, best = METHODS
    console.rule(f"Code that the model wrote with {best}")
    print_text(console, Text(prompt, "dim"), end="")
    print_text(console, coloured(runs[best][0], model.tokenizer, rejected=False))
    if has_colours(console):
        console.print(legend(colours=True).partition(", struck")[0], style="dim")
    console.rule()
    print_table(console, "method", ("tokens/s", "speedup", "tau", "divergences"), rows(runs, model.target))
    console.print(EXPLAINED, style="dim")
    if seconds(runs[best]) > seconds(runs[plain]):
        console.print("Plain decoding was the fastest here. Other work on this machine disturbs such short timings.")
    command = "jaxspec" if shutil.which("jaxspec") else ".venv/bin/jaxspec"
    tried = f"{command} generate --target {BUILTIN} --prompt {shlex.quote(NEXT)} --show-drafts"
    console.print(f"Next, try: {tried}", soft_wrap=True, markup=False)


def seconds(found: list[Generation]) -> float:
    """The median time of decoding."""
    return statistics.median(each.decode_seconds for each in found)


def rows(runs: dict[str, list[Generation]], target: Llama) -> list[tuple[str, ...]]:
    """Name, tokens/s (medians), speedup, tau and divergences of each method against the first; the fastest first."""
    found, reference = [], next(iter(runs.values()))
    plain = reference[0]
    for name, ours in sorted(runs.items(), key=lambda item: seconds(item[1])):
        counts, speedup = ours[0].statistics, seconds(reference) / seconds(ours)
        apart = diverges(target, 0, 0, (plain.prompt_tokens, plain.tokens), ours[0].tokens)
        differ = "0" if apart is None else f"1, at a gap of {apart.gap:.1e}"
        found.append((name, f"{counts.tokens / seconds(ours):.0f}", f"{speedup:.2f}x", f"{counts.tau:.2f}", differ))
    return found
