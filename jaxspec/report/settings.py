"""Options of `jaxspec report`. This module does not import JAX, so `--help` is fast."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro import conf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Make an HTML report of benchmark results. It is a single file that works offline.

    For example: jaxspec report out.json --out report.html

    The report has the papers' tables with your numbers beside the published ones, figures, and generated texts coloured
    by round. A click on a token opens the draft tree of its round.
    """

    runs: Annotated[conf.Positional[tuple[Path, ...]], conf.arg(metavar="RUN.json ...", help_behavior_hint="")]
    """OUT.json files of finished `jaxspec bench` or `sweep` runs. The logs OUT.json.jsonl must lie beside them."""
    out: Path
    """Write the report to this file."""
    generations: int = 3
    """Number of questions per run whose answers and draft trees are shown, for every method."""
