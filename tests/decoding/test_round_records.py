"""The counts of rounds, as logs have them and cut to a text."""

from jaxspec.decoding.round_records import FIELDS, first_tokens, from_rows, join, to_rows

ROWS = [[3, 2, 4, 4, 4, 3], [5, 4, 4, 5, 4, 5], [2, 1, 4, 4, 4, 2], [0, 0, 0, 0, 0, 0]]


def test_rows_of_the_logs_are_read_back():
    counts = from_rows(ROWS)
    assert to_rows(counts) == ROWS
    assert dict(zip(FIELDS, ROWS[1], strict=True)) == {name: getattr(counts, name)[1] for name in FIELDS}
    assert to_rows(from_rows([])) == []


def test_rounds_of_a_row_that_was_done_do_not_count():
    assert to_rows(join([from_rows(ROWS), from_rows(ROWS[::-1])])) == ROWS[:3] + ROWS[2::-1]
    assert to_rows(join([])) == []


def test_a_history_is_cut_where_the_text_is():
    cut = lambda tokens: to_rows(first_tokens(from_rows(ROWS), tokens))
    assert cut(11) == ROWS[:3]
    assert cut(9) == ROWS[:2]
    assert cut(7) == [[3, 2, 4, 4, 4, 3], [3, 3, 3, 5, 4, 5]]
    assert cut(1) == []
