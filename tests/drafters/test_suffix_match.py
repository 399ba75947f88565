"""Prompt lookup against a brute-force search, written from its definition in plain Python."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.decoding import loop
from jaxspec.decoding.drafter import Committed, Models, Prefix
from jaxspec.decoding.tree import DraftTree, Frontier, init_tree
from jaxspec.drafters import suffix_match
from jaxspec.drafters.ngram import CANDIDATES, Ngram
from jaxspec.methods.method import parse_method
from tests.drafters.chain import ADD, EXPAND, ROOT
from tests.lossless.harness import begun, models, requests, speculation, weights

ROWS, LONGEST = 40, 5


def common(one: Sequence[int], other: Sequence[int], most: int) -> int:
    """How many of the last tokens of two texts are the same, up to `most`."""
    count = 0
    while count < min(most, len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    return count


def lookup(text: list[int], ending: list[int], longest: int) -> list[tuple[int, int]]:
    """(matched, place) of every match of what `ending` ends with, the best first; the last of `text` is none."""
    found = [(common(text[: at + 1], ending, longest), at) for at in range(len(text) - 1)]
    return sorted((match for match in found if match[0]), reverse=True)


@pytest.fixture(scope="module")
def target() -> Models:
    return weights(speculation(parse_method("ngram"), greedy=True), models(vocab_size=5))


@pytest.fixture(scope="module")
def texts() -> tuple[np.ndarray, list[list[int]]]:
    """Rows of few different tokens, whose padding goes on like the text: what lies there must not match."""
    rng = np.random.default_rng(0)
    rows = np.tile(rng.integers(0, 3, size=(24, 10)), (1, 4))
    rows[:12] = rng.integers(0, 4, size=(12, ROWS))
    rows[0] = 2
    lengths = [1, 1, 2, 3, *rng.integers(2, ROWS, size=20)]
    return rows, [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]


def test_the_continuation_of_the_longest_match(texts):
    rows, known = texts
    lengths = jnp.array([len(text) for text in known])
    found = jax.jit(suffix_match.continuation, static_argnums=(2, 3))(jnp.asarray(rows), lengths, LONGEST, 12)
    lengths_seen = set()
    for i, text in enumerate(known):
        matches = lookup(text, text, LONGEST)
        assert int(found.matched[i]) == (matches[0][0] if matches else 0)
        lengths_seen.add(int(found.matched[i]))
        if matches:
            going_on = list(text)
            period = len(text) - 1 - matches[0][1]
            for _ in range(12):
                going_on.append(going_on[-period])
            assert found.token[i].tolist() == going_on[len(text) :]
    assert lengths_seen == {0, 1, 2, 3, 4, 5}


def tree_over(texts: list[list[int]], rng: np.random.Generator) -> tuple[DraftTree, list[list[list[int]]]]:
    """A tree of five nodes below each root, of random tokens and parents, and each node's path, the text before it."""
    tree = init_tree(jnp.array([text[-1] for text in texts]), 6, None)
    paths = [[list(text)] for text in texts]
    for slot in range(1, 6):
        token, parent = (jnp.asarray(rng.integers(0, most, size=len(texts))) for most in (3, slot))
        for path, t, p in zip(paths, token.tolist(), parent.tolist(), strict=True):
            path.append([*path[p], t])
        score = jnp.zeros((len(texts), 1))
        tree = ADD(tree, jnp.array([slot]), token[:, None], parent[:, None], score, score == 0)
    return tree, paths


def test_the_candidates_of_every_node_of_a_tree(texts, target):
    rows, known = texts
    tree, paths = tree_over(known, np.random.default_rng(1))
    prefix = Prefix(token=jnp.asarray(rows), length=jnp.array([len(text) for text in known]), cache=())
    nodes = jnp.broadcast_to(jnp.arange(6), (len(known), 6))
    frontier = Frontier(node=nodes, live=nodes >= 0, level=jnp.zeros((), jnp.int32))
    drafter = Ngram(longest=LONGEST, shortest=2)
    drafts, _ = EXPAND(drafter, target, drafter.init(target, len(known), ROWS), prefix, tree, frontier)
    assert drafts.token is not None and drafts.token.shape == (len(known), 6, CANDIDATES)
    deepest = 0
    for row, text in enumerate(known):
        for node, path in enumerate(paths[row]):
            matches = [match for match in lookup(text, path, LONGEST) if match[0] >= 2]
            best: dict[int, tuple[int, int]] = {}
            for match in matches:
                best.setdefault(text[match[1] + 1], match)
            live = ~np.isneginf(drafts.logits[row, node])
            assert drafts.token[row, node][live].tolist() == list(best)
            if matches:
                score = np.array([4.0 * matched + at / ROWS for matched, at in best.values()])
                share = np.exp(score - score.max()) / np.exp(score - score.max()).sum()
                wanted = share * matches[0][0] / (matches[0][0] + 2)  # nothing is known of the text yet
                np.testing.assert_allclose(np.exp(drafts.logits[row, node][live]), wanted, rtol=1e-5)
                deepest = max(deepest, matches[0][0])
    assert deepest == LONGEST


def test_what_each_length_of_a_match_has_been_worth():
    state = suffix_match.unmatched(4, 3)
    guess = suffix_match.Continuation(token=jnp.array([[5, 6, 7, 8]] * 4), matched=jnp.array([2, 1, 0, 1]))
    committed = jnp.array([[5, 6, 9], [5, 6, 7], [5, 6, 7], [9, 6, 7]])
    count = jnp.array([3, 2, 3, 3])
    after = suffix_match.learn(dataclasses.replace(state, ahead=guess), committed, count)
    assert after.compared.tolist() == [[0, 1, 2], [1, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert after.followed.tolist() == [[0, 1, 1], [1, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert after.ahead is None
    chances = suffix_match.chance(after, jnp.array([[3, 9], [1, 0], [1, 2], [1, 3]]))
    wanted = [[(1 + 2.4) / 6] * 2, [(1 + 4 / 3) / 5, 0], [1 / 3, 1 / 2], [4 / 3 / 5, 3 / 5]]
    np.testing.assert_allclose(chances, wanted, rtol=1e-6)


def test_a_chunk_of_a_prompt_teaches_nothing():
    state = suffix_match.unmatched(1, 3)
    assert suffix_match.learn(state, jnp.array([[1, 1, 1]]), jnp.array([3])) is state


def test_it_learns_while_it_decodes(target):
    """On a text that repeats, every draft comes; a row that is done learns no more."""
    spec = speculation(parse_method("ngram+chain,length=3"), greedy=True)
    asked = [*requests([[1, 2, 3] * 4], 40), *requests([[4, 1, 3]], 3)]
    state = begun(spec, target, asked, (), 96)
    counts = []
    for _ in range(8):
        state = loop.decode(spec, target, state, jnp.int32(1))
        counts.append(np.asarray(state.drafter.compared).sum(axis=1))
        assert (state.drafter.followed <= state.drafter.compared).all()
    assert counts[-1][0] >= 16, "it never came to repeat itself"
    assert bool(state.done[1]) and counts[-1][1] == counts[3][1]


def test_confidences_are_the_chances(target):
    """What a builder sees of a match that has been right is more than of one that has not."""
    drafter, text = Ngram(), [1, 2, 3, 1, 2]
    prefix = Prefix(token=jnp.array([text, text]), length=jnp.array([5, 5]), cache=())
    tree = init_tree(jnp.array([2, 2]), 2, None)
    state = drafter.init(target, 2, 8)
    _, begun_state = ROOT(drafter, target, state, prefix, tree)
    none = jnp.zeros((2, 2, 1))
    seen = Committed(
        start=jnp.array([4, 4]), count=jnp.array([1, 1]), token=jnp.array([[2, 3], [2, 3]]),
        next_token=jnp.array([[3, 1], [9, 1]]), hidden=none, taps=(),
    )  # fmt: skip
    drafts, _ = ROOT(drafter, target, jax.jit(drafter.observe)(target, begun_state, seen), prefix, tree)
    first = np.exp(drafts.logits[:, 0, 0])
    np.testing.assert_allclose(first, [(1 + 4 * 0.5) / 5, (0 + 4 * 0.5) / 5], rtol=1e-6)
