"""Help of the three programs and of their commands. One process for each program prints all of it."""

import itertools
import json
import os
import subprocess
import sys

import pytest

TRAINING = (
    *("lm", "eagle", "eagle3", "dflash", "draft-model", "early-exit", "edd", "medusa", "layer-skip", "skip-search"),
    *("calibrator", "generate"),
)
PROGRAMS = {  # by module: commands, and what their help may not import
    "main": (("", "generate", "bench", "eval", "plan"), ()),
    "train": (
        ("", *TRAINING),
        ("jax", "flax", "optax", "orbax", "transformers", "tokenizers", "numpy", "scipy"),
    ),
    "convert": (
        ("", "llama", "head", "export", "tokenizer", "inspect"),
        ("jax", "flax", "orbax", "transformers", "torch"),
    ),
}
PRINT = """
import contextlib, importlib, io, json, sys
program, commands, heavy = json.loads(sys.argv[1])
module, texts = importlib.import_module(f"jaxspec.commands.{program}"), {}
for command in commands:
    sys.argv = [f"jaxspec-{program}", *command.split(), "--help"]
    page = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # tyro draws boxes where the encoding has them
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
        module.main()
    page.flush()
    texts[command] = page.buffer.getvalue().decode()
print(json.dumps([texts, [name for name in heavy if name in sys.modules]]))
"""


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def printed(program: str) -> tuple[dict[str, str], list[str]]:
    """Help by command, and the heavy modules that printing it has imported."""
    commands, heavy = PROGRAMS[program]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", PRINT, json.dumps([program, commands, heavy])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return tuple(json.loads(done.stdout))


def test_nothing_heavy_is_imported(printed: tuple[dict[str, str], list[str]]):
    assert printed[1] == []


def test_a_programs_help_lists_the_commands_in_one_sentence_each(program: str, printed: tuple[dict[str, str], list]):
    """Examples and details are in a command's own help."""
    helps = dict(printed[0])
    whole = helps.pop("")
    assert "For example" not in whole
    assert "COMMAND --help" in whole
    for name, own in helps.items():
        assert name in whole
        typed = f"jaxspec {name}" if program == "main" else f"jaxspec-{program} {name}"
        assert f"usage: {typed}" in own and f"For example: {typed}" in own


@pytest.mark.parametrize(
    ("program", "command"), [("main", "plan"), ("train", "skip-search"), ("convert", "head")], indirect=["program"]
)
def test_help_is_flowing_text(command: str, printed: tuple[dict[str, str], list[str]]):
    """No line of an option's help ends before it is full, and no default is given twice."""
    text = printed[0][command]
    lines = [line.strip("│\n").rstrip() for line in text.splitlines() if line.startswith("│")]
    indented = lambda line: len(line) - len(line.lstrip())
    following = [(a, b) for a, b in itertools.pairwise(lines) if 8 < indented(a) == indented(b)]
    assert following
    for line, after in following:
        assert len(line) + 1 + len(after.split()[0]) > 76, (line, after)
    assert "default: None" not in text
    assert "{None" not in text
