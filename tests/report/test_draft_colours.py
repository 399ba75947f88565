"""Text with its drafts: only drafts that the target rejected are struck out."""

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from jaxspec.decoding.round_records import from_rows
from jaxspec.engine.generation import Generation, Round
from jaxspec.report.draft_colours import coloured, has_colours, legend, pieces, print_text


def cut(committed: list[int], accepted: int) -> Generation:
    """One round of a chain 11, 12, 13 whose first `accepted` drafts were accepted."""
    on = np.arange(4) <= accepted
    chain = Round(np.arange(10, 14), np.arange(-1, 3), -np.arange(4.0), on, committed)
    history = from_rows([[len(committed), accepted, 3, 3, 3, accepted + 1]])
    return Generation([1], [10, *committed], "", "length", history, None, [chain], 0.0, 0.0, None)


@pytest.mark.parametrize(
    ("committed", "accepted", "rejected"),
    [
        ([20], 0, [11, 12, 13]),
        ([11, 20], 1, [12, 13]),
        ([11, 12, 13, 20], 3, []),
        ([11], 1, []),  # the text ended there, before any verdict on 12
    ],
)
def test_drafts_without_a_verdict_are_not_struck_out(committed: list[int], accepted: int, rejected: list[int]):
    found = list(pieces(cut(committed, accepted), rejected=True))
    assert [tokens for kind, tokens in found if kind == "rejected"] == ([rejected] if rejected else [])
    assert [token for kind, tokens in found if kind != "rejected" for token in tokens] == [10, *committed]


class Numbers:
    """A tokenizer whose text is the ids."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(f"<{token}>" for token in tokens)

    def decode_after(self, before: list[int], tokens: list[int]) -> str:
        return self.decode(tokens)


def test_without_colours_rejected_drafts_stand_in_brackets():
    generation = cut([11, 20], 1)
    assert coloured(generation, Numbers(), rejected=True, colours=False).plain == "<10><11>[-<12><13>-]<20>"
    shown = coloured(generation, Numbers(), rejected=True)
    assert shown.plain == "<10><11><12><13><20>"
    assert "strike" in str(next(span.style for span in shown.spans if shown.plain[span.start : span.end] == "<12><13>"))
    assert "struck out" in legend(True)
    assert "in brackets" in legend(False)


def test_a_terminal_without_colours_is_none_with_them():
    terminal = {"force_terminal": True, "_environ": {"TERM": "xterm-256color"}}
    assert has_colours(Console(**terminal))
    assert not has_colours(Console(**terminal, no_color=True))
    assert not has_colours(Console(file=io.StringIO(), _environ={}))


def test_tabs_and_long_lines_stay():
    console = Console(file=(file := io.StringIO()), width=20)
    print_text(console, Text("if x:\n\treturn" + 9 * " 'abc'"), end="")
    print_text(console, Text("[b]"))
    assert file.getvalue() == "if x:\n\treturn" + 9 * " 'abc'" + "[b]\n"


def test_a_text_ends_before_its_stop_string():
    ended = dataclasses.replace(cut([11, 20], 1), text="<10><1", finish_reason="stop")
    assert coloured(ended, Numbers(), rejected=True).plain == "<10><1"


def test_a_character_of_several_tokens_is_whole():
    class Bytes(Numbers):
        def decode_after(self, before: list[int], tokens: list[int]) -> str:
            return bytes({10: 97, 11: 226, 12: 130, 13: 172, 20: 98}[token] for token in tokens).decode(
                errors="replace"
            )

    assert coloured(cut([11, 12, 13, 20], 3), Bytes(), rejected=False).plain == "a€b"
    assert coloured(cut([11, 12], 2), Bytes(), rejected=False).plain == "a"
    two = dataclasses.replace(cut([11], 1), tokens=[10, 11, 12, 13, 20])
    assert two.rounds is not None
    rounds = [*two.rounds, dataclasses.replace(two.rounds[0], committed=[12, 13, 20])]
    two = dataclasses.replace(two, rounds=rounds, history=from_rows([[1, 1, 3, 3, 3, 2], [3, 2, 3, 3, 3, 3]]))
    assert coloured(two, Bytes(), rejected=False).plain == "a€b"


def test_rejected_line_breaks_break_no_line():
    class Lines(Numbers):
        def decode(self, tokens: list[int]) -> str:
            return super().decode(tokens).replace("<12>", " \n  ")

    assert coloured(cut([11, 20], 1), Lines(), rejected=True).plain == "<10><11>⏎<13><20>"
    assert coloured(cut([11, 12, 20], 2), Lines(), rejected=True).plain == "<10><11> \n  <13><20>"
