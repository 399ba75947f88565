"""Text with its drafts: only drafts that the target rejected are struck out."""

import numpy as np
import pytest

from jaxspec.decoding.round_records import from_rows
from jaxspec.engine.generation import Generation, Round
from jaxspec.report.draft_colours import coloured, legend, pieces


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


def test_without_colours_rejected_drafts_stand_in_brackets():
    generation = cut([11, 20], 1)
    assert coloured(generation, Numbers(), rejected=True, colours=False).plain == "<10><11>[-<12><13>-]<20>"
    shown = coloured(generation, Numbers(), rejected=True)
    assert shown.plain == "<10><11><12><13><20>"
    assert "strike" in str(next(span.style for span in shown.spans if shown.plain[span.start : span.end] == "<12><13>"))
    assert "struck out" in legend(True)
    assert "in brackets" in legend(False)


def test_rejected_line_breaks_break_no_line():
    class Lines(Numbers):
        def decode(self, tokens: list[int]) -> str:
            return super().decode(tokens).replace("<12>", " \n  ")

    assert coloured(cut([11, 20], 1), Lines(), rejected=True).plain == "<10><11>⏎<13><20>"
    assert coloured(cut([11, 12, 20], 2), Lines(), rejected=True).plain == "<10><11> \n  <13><20>"
