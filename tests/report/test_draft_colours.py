"""Text with its drafts between: only those are struck out that the target refused."""

import numpy as np
import pytest

from jaxspec.decoding.round_counts import from_rows
from jaxspec.engine.generation import Generation
from jaxspec.engine.recorded_rounds import Round
from jaxspec.report.draft_colours import pieces


def cut(committed: list[int], accepted: int) -> Generation:
    """One round of a chain 11, 12, 13 whose first `accepted` drafts were accepted."""
    on = np.arange(4) <= accepted
    chain = Round(np.arange(10, 14), np.arange(-1, 3), -np.arange(4.0), on, committed)
    history = from_rows([[len(committed), accepted, 3, 3, 3]])
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
