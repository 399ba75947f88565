"""Options of `jaxspec report`. Kept apart from the work, so that `--help` need not load JAX."""

import dataclasses
from pathlib import Path

from tyro import conf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Make a page of benchmarks: one HTML file that opens from disk and fetches nothing.

    For example: jaxspec report out.json --out report.html

    It has the tables of the papers with these runs' numbers beside the published ones, figures, and generations
    coloured by round, whose draft trees open with a click.
    """

    runs: conf.Positional[tuple[Path, ...]]
    """OUT.json of finished `jaxspec bench` or `sweep` runs; OUT.json.jsonl, which lies beside each, is what is read."""
    out: Path
    """Write the page here."""
    generations: int = 3
    """Show the answers to this many questions of each run, by every method, with their trees."""
