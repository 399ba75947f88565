"""Counts by hand: chains and trees, cuts inside an accepted run, rows that were done."""

import pytest

from jaxspec.decoding.round_records import first_tokens, from_rows, to_rows
from jaxspec.engine.statistics import Statistics, statistics_of

# committed, accepted, levels, drafted, verified, uncut
CHAIN = [[3, 2, 4, 4, 4, 3], [1, 0, 4, 4, 4, 1], [5, 4, 4, 4, 4, 5]]
TREE = [[3, 2, 3, 10, 6, 3], [2, 1, 2, 10, 4, 2]]
DONE = [[0] * 6] * 2


def count(*texts: list[list[int]]) -> Statistics:
    return statistics_of([from_rows(text) for text in texts])


def test_a_chain():
    counts = count(CHAIN)
    assert (counts.tokens, counts.rounds, counts.accepted) == (9, 3, 6)
    assert counts.tau == 3 and counts.tau_drafted == 2
    assert counts.acceptance_rate == counts.draft_share * 9 / 12 == 0.5
    # Position 0 was accepted in 2 of 3 rounds; of these, position 1 in 2; of these, position 2 in 1; and then 3.
    assert counts.acceptance_by_position == pytest.approx((2 / 3, 1, 1 / 2, 1))
    assert counts.unconditional_acceptance_by_position == pytest.approx((2 / 3, 2 / 3, 1 / 3, 1 / 3))
    assert counts.draft_accuracy == 6 / 12
    assert counts.harmonic_mean == pytest.approx(2 * (6 / 12) * (6 / 9) / (6 / 12 + 6 / 9))


def test_a_position_that_was_not_drafted_was_not_reached():
    """All drafts were accepted, in a round of two levels and in one of three: there was one third position."""
    counts = count([[3, 2, 2, 2, 2, 3], [4, 3, 3, 3, 3, 4]])
    assert counts.acceptance_by_position == (1, 1, 1)
    assert counts.unconditional_acceptance_by_position == (1, 1, 1 / 2)


def test_vllm_counts_no_round_without_a_draft():
    """Its mean acceptance length is that of the rounds that drafted."""
    counts = count(CHAIN + [[1, 0, 0, 0, 0, 1]])
    assert counts.unconditional_acceptance_by_position == count(CHAIN).unconditional_acceptance_by_position
    assert 1 + sum(counts.unconditional_acceptance_by_position) == pytest.approx(count(CHAIN).tau)
    assert count(DONE).unconditional_acceptance_by_position == ()


def test_a_tree_counts_levels_and_nodes_apart():
    counts = count(TREE)
    assert counts.acceptance_rate == 3 / 5
    assert (counts.nodes_per_round, counts.nodes_drafted_per_round, counts.depth_per_round) == (5, 10, 2.5)
    assert counts.harmonic_mean == pytest.approx(2 * (3 / 20) * (3 / 5) / (3 / 20 + 3 / 5))


def test_several_texts_add_up_and_done_rows_count_nothing():
    assert count(CHAIN + DONE, DONE, TREE) == count(CHAIN + TREE)
    assert count(DONE) == count() and count().tau == 0


def test_a_cut_inside_an_accepted_run_is_made_before_counting():
    """The text ends with the second token of a round that accepted four drafts."""
    history = first_tokens(from_rows(CHAIN + DONE), tokens=1 + 3 + 1 + 2)
    assert to_rows(history) == [[3, 2, 4, 4, 4, 3], [1, 0, 4, 4, 4, 1], [2, 2, 2, 4, 4, 5]]
    counts = statistics_of([history])
    assert counts.tokens == 6 and counts.tau == 2 and counts.acceptance_rate == 4 / 10
    assert counts.acceptance_by_position == pytest.approx((2 / 3, 1, 0, 0))


def test_eagle_counts_the_round_that_was_cut_whole():
    """Of 3 + 1 + 5 tokens the budget keeps 3 + 1 + 2."""
    history = first_tokens(from_rows(CHAIN), tokens=1 + 3 + 1 + 2)
    counts = statistics_of([history])
    assert (counts.tau, counts.tau_uncut) == (6 / 3, 9 / 3)
    assert count(CHAIN).tau_uncut == count(CHAIN).tau == 3 and count().tau_uncut == 0


def test_a_text_that_is_whole_is_not_cut():
    assert to_rows(first_tokens(from_rows(CHAIN + DONE), tokens=1 + 9)) == CHAIN
    assert to_rows(first_tokens(from_rows(CHAIN), tokens=1)) == []  # prefill's token was the last
