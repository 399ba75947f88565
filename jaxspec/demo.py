"""`jaxspec demo`: a small LLaMA, made on the spot, decoded plainly and with drafts."""

import shutil
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jaxspec import caches
from jaxspec.engine import Engine, Generation
from jaxspec.loading import load
from jaxspec.show import LEGEND, coloured

METHODS = ("plain", "ngram+chain")
PROMPT = '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self, items=()):
        self.items = list(items)

    def push(self, item):
        self.items.append(item)

    def'''
NEW_TOKENS = 128
REPEATS = 5


def run() -> None:
    """Makes the model (once), shows a text with its drafts, and prints a table of both methods."""
    console = Console(highlight=False)
    path = caches.folder() / "demo"
    if not (path / "config.json").exists():
        make(path, console)
    model = load(path)
    engines = {name: Engine(model, name) for name in METHODS}
    console.print("\nCompiling ...")
    for engine in engines.values():
        generate(engine)
    runs: dict[str, list[Generation]] = {name: [] for name in METHODS}
    for _ in range(REPEATS):  # taking turns, so that a busy machine slows both
        for name, engine in engines.items():
            runs[name].append(generate(engine))
    recorded = engines[METHODS[-1]].generate(PROMPT, max_new_tokens=NEW_TOKENS, record=True)[0]
    console.rule(f"{METHODS[-1]}, greedy")
    console.print(PROMPT, end="", style="dim", markup=False)
    console.print(coloured(recorded, model.tokenizer, rejected=False))
    console.print(LEGEND.partition(", struck")[0], style="dim")
    console.rule()
    console.print(table(runs))


def make(path: Path, console: Console) -> None:
    """Trains a small LLaMA on Python's own library, writes it as Hugging Face would, and converts that."""
    from jaxspec.convert import export, llama
    from jaxspec.train import lm, text

    console.print("Training a small LLaMA on the source of Python's standard library (once) ...")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        trained, exported = Path(scratch, "trained"), Path(scratch, "hf")
        shape = lm.shape(vocab_size=1024, layers=4, hidden_size=128, head_dim=32, context=256)
        lm.train(trained, text.standard_library(), shape, lm.Recipe(steps=300, batch_size=2, learning_rate=4e-3))
        console.print("Converting it from Hugging Face's format ...")
        export.export(trained, exported)
        shutil.rmtree(path, ignore_errors=True)  # half of one, from a version before this
        llama.convert(exported, path)


def generate(engine: Engine) -> Generation:
    """The demo's text."""
    return engine.generate(PROMPT, max_new_tokens=NEW_TOKENS)[0]


def table(runs: dict[str, list[Generation]]) -> Table:
    """Tokens/s (medians), speedup, tau and differing tokens of each method, the first being the reference."""
    shown = Table("method", "tokens/s", "speedup", "tau", "tokens that differ", box=None)
    reference = next(iter(runs.values()))
    base = statistics.median(g.decode_seconds for g in reference)
    for name, found in runs.items():
        seconds = statistics.median(g.decode_seconds for g in found)
        counts = found[0].statistics
        differ = sum(a != b for a, b in zip(found[0].tokens, reference[0].tokens, strict=True))
        shown.add_row(
            name, f"{counts.tokens / seconds:.0f}", f"{base / seconds:.2f}x", f"{counts.tau:.2f}", str(differ)
        )
    return shown
