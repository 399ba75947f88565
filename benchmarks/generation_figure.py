"""Draws `generation.svg`, the README's figure: a text coloured by who proposed each token, and one draft tree."""

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.padding import Padding
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text
from rich.tree import Tree

import jaxspec
from jaxspec.engine.generation import Round
from jaxspec.report.draft_colours import STYLES, coloured

METHOD = "eagle+eagle2,total=8,depth=4,width=4"
PROMPT = '''def decode(data, encoding="utf-8"):
    """Decode bytes into a string."""
    if not isinstance('''
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}" role="img">
<title>Text that a small LLaMA wrote, coloured by who proposed each token</title>
<style>.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace; }} {styles}</style>
<defs>{lines}</defs>
<rect width="100%" height="100%" rx="10" fill="#fcfcfa"/>
<g class="{unique_id}-matrix">{backgrounds}{matrix}</g></svg>
"""


def tree_of(one: Round, tokenizer: Any) -> Tree:
    """The draft tree of a round, with its accepted path in green."""
    label = lambda node: Text(
        repr(tokenizer.decode([int(one.token[node])])), STYLES["accepted"] if one.accepted[node] else "dim"
    )
    branches = {0: Tree(Text("the text so far", "dim"), guide_style="dim")}
    for node in range(1, len(one.parent)):  # parents precede their children
        branches[node] = branches[int(one.parent[node])].add(label(node))
    return branches[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "generation.svg")
    parser.add_argument("--max-new-tokens", type=int, default=60)
    options = parser.parse_args()

    model = jaxspec.load("builtin")
    plain, drafted = (
        jaxspec.Engine(model, method).generate(PROMPT, max_new_tokens=options.max_new_tokens, record=True)[0]
        for method in ("plain", METHOD)
    )
    if plain.tokens != drafted.tokens:
        raise SystemExit("the texts differ: nothing to be proud of")
    best = max(drafted.rounds or [], key=lambda one: (int(np.sum(one.accepted)), len(one.parent)))
    forwards = [one.statistics.rounds for one in (plain, drafted)]
    written = Text.assemble((PROMPT, "dim"), coloured(drafted, model.tokenizer, rejected=False))
    header = Text.assemble(
        f"{len(plain.tokens)} tokens. One at a time: {forwards[0]} forwards. ",
        f"With drafts: {forwards[1]} forwards, and the same text.\n",
        ("Drafted, and the target agreed", STYLES["accepted"]),
        " · ",
        ("the target's own", STYLES["bonus"]),
        " · ",
        ("prompt", "dim"),
    )
    below = Group(
        Text("\nOne of those forwards read all of this at once; the green path and one more token were kept:")
    )
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Padding(Group(header, Text(), written, below, tree_of(best, model.tokenizer)), (1, 2)))
    options.out.write_text(console.export_svg(theme=DEFAULT_TERMINAL_THEME, code_format=FORMAT, unique_id="generation"))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
