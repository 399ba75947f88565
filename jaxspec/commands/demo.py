"""`jaxspec demo`: the small LLaMA that comes with jaxspec, decoded plainly and with drafts."""

import statistics

from rich.console import Console
from rich.table import Table

from jaxspec.checkpoint.builtin import BUILTIN
from jaxspec.checkpoint.loading import load
from jaxspec.commands.settings import Demo
from jaxspec.engine.engine import Engine
from jaxspec.engine.generation import Generation
from jaxspec.evaluate.divergence import diverges
from jaxspec.model.llama import Llama
from jaxspec.report.draft_colours import LEGEND, coloured

# Small trees: on a CPU every token that is verified costs.
METHODS = (
    "plain",
    "ngram+chain",
    "layer-skip+adaptive",
    "eagle+chain,length=3",
    "eagle+eagle2,total=8,depth=4,width=4",
)
SHOWN = METHODS[-1]
PROMPT = '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self, items=()):
        self.items = list(items)

    def push(self, item):
        self.items.append(item)

    def'''
NEW_TOKENS = 192
REPEATS = 5


def run(settings: Demo) -> None:
    """Shows a text with its drafts, and prints a table of the methods."""
    console = Console(highlight=False)
    model = load(BUILTIN)
    engines = {name: Engine(model, name) for name in METHODS}
    with console.status("Compiling ..."):
        for engine in engines.values():
            generate(engine)
    runs: dict[str, list[Generation]] = {name: [] for name in METHODS}
    for _ in range(REPEATS):  # taking turns, so that a busy machine slows all
        for name, engine in engines.items():
            runs[name].append(generate(engine))
    recorded = engines[SHOWN].generate(PROMPT, max_new_tokens=NEW_TOKENS, record=True)[0]
    console.rule(f"{SHOWN}, greedy")
    console.print(PROMPT, end="", style="dim", markup=False)
    console.print(coloured(recorded, model.tokenizer, rejected=False))
    console.print(LEGEND.partition(", struck")[0], style="dim")
    console.rule()
    console.print(table(runs, model.target))


def generate(engine: Engine) -> Generation:
    """The demo's text."""
    return engine.generate(PROMPT, max_new_tokens=NEW_TOKENS)[0]


def table(runs: dict[str, list[Generation]], target: Llama) -> Table:
    """Tokens/s (medians), speedup, tau and divergences of each method, the first being the reference."""
    shown = Table("method", "tokens/s", "speedup", "tau", "divergences", box=None)
    reference = next(iter(runs.values()))
    base, plain = statistics.median(g.decode_seconds for g in reference), reference[0]
    for name, found in runs.items():
        seconds = statistics.median(g.decode_seconds for g in found)
        counts = found[0].statistics
        apart = diverges(target, 0, 0, (plain.prompt_tokens, plain.tokens), found[0].tokens)
        shown.add_row(
            name,
            f"{counts.tokens / seconds:.0f}",
            f"{base / seconds:.2f}x",
            f"{counts.tau:.2f}",
            "0" if apart is None else f"1, at a gap of {apart.gap:.1e}",
        )
    return shown
