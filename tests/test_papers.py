"""The commands of docs/papers.md: each is one that this version takes, with methods that exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxspec.commands import convert, main, train
from jaxspec.commands.console import parse
from jaxspec.evaluate.settings import Bench, Eval, Sweep
from jaxspec.methods.method import parse_method
from jaxspec.methods.variants import vary
from jaxspec.report.tables import published

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
PROGRAMS = {"jaxspec": main.COMMANDS, "jaxspec-train": train.COMMANDS, "jaxspec-convert": convert.COMMANDS}


def commands() -> Iterator[str]:
    """Every command, on one line."""
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("#"):
                yield " ".join(line.split())


@pytest.mark.parametrize("command", [*commands()])
def test_a_command_is_taken(command: str):
    program, first, *rest = shlex.split(command)
    if program == "python":
        assert (ROOT / first).is_file()
        return
    settings = parse(PROGRAMS[program][first][0], program, "", rest)
    typed = []
    if isinstance(settings, Bench):
        typed = [*settings.methods]
    elif isinstance(settings, Sweep):
        setting, _, values = settings.over.partition("=")
        vary(parse_method(settings.method), setting, values.split(","))
        typed = [*settings.against]
    elif isinstance(settings, Eval) and settings.method is not None:
        typed = [settings.method]
    for method in typed:
        parse_method(method)


def test_every_published_table_is_on_the_page():
    """Under its paper's heading, by number."""
    sections = dict(re.findall(r"^## (.*?) \(.*?\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
    for source in published():
        paper, _, numbers = source.partition(", Table")
        if paper == "EAGLE-3":
            continue
        (section,) = (text for title, text in sections.items() if title.startswith(paper))
        for number in re.findall(r"\d+", numbers):
            assert re.search(rf"Tables? (\d+(,| and| to) )*{number}\b", section), source
