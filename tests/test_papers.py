"""The commands of docs/papers.md: each is one that this version takes, with methods that exist."""

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.paper_tables import TEMPLATES
from benchmarks.papers import PAGE, ROOT, commands, needs_builtin_only, run
from jaxspec.commands import convert, main, train
from jaxspec.commands.console import parse
from jaxspec.methods.method import parse_method, vary
from jaxspec.options.by_command import Bench, Eval, Sweep
from jaxspec.report.papers import published

PROGRAMS = {"jaxspec": main.COMMANDS, "jaxspec-train": train.COMMANDS, "jaxspec-convert": convert.COMMANDS}


@pytest.mark.parametrize("command", [*commands()])
def test_a_command_is_taken(command: str):
    program, first, *rest = shlex.split(command)
    if program == "python":
        assert (ROOT / first).is_file()
        return
    settings = parse(PROGRAMS[program][first][0], program, rest)
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
    sections = dict(re.findall(r"^## (.*?) \(.*?\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S))
    for source in published():
        paper, _, numbers = source.partition(", Table")
        if paper == "EAGLE-3":
            continue
        (section,) = (text for title, text in sections.items() if title.startswith(paper))
        for number in re.findall(r"\d+", numbers):
            assert re.search(rf"Tables? (\d+(,| and| to) )*{number}\b", section), source


def test_every_template_has_its_row():
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        rows = {cells[0] for line in section.split("\n") if len(cells := line.removeprefix("| ").split(" | ")) == 5}
        assert rows >= TEMPLATES[section.partition(" (")[0]].keys()


def test_what_needs_the_builtin_model_only_is_run(tmp_path: Path):
    chosen = [command for command in commands() if needs_builtin_only(command)]
    assert "jaxspec-convert llama mistralai/Mixtral-8x7B-Instruct-v0.1 mixtral" not in chosen
    assert len(chosen) > 30 and not any("llama-13b" in command for command in chosen)
    assert run("jaxspec bench --target builtin --methods none", tmp_path, tmp_path / "1.txt") == 2
    assert "Missing from jaxspec bench: --prompts" in (tmp_path / "1.txt").read_text()
