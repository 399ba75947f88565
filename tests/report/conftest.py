"""Two runs that differ in the batch size, and one of GSM8K, on one page."""

from pathlib import Path

import pytest

from jaxspec.options.by_command import Report
from jaxspec.report import page
from tests.report import made_up


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("report")
    return [
        made_up.write(folder / "one.json"),
        made_up.write(folder / "four.json", batch_size=4),
        made_up.write(folder / "maths.json", made_up.METHODS[:3], suite="gsm8k", keep_state=True),
    ]


@pytest.fixture(scope="session")
def html(runs: list[Path]) -> Path:
    out = runs[0].parent / "report.html"
    page.run(Report(runs=tuple(runs), out=out))
    return out
