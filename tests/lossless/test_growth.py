"""A cache that grows while a text is decoded changes neither the text nor what is drafted and accepted.

The texts are sampled: greedy texts of a random model soon repeat one token, which hides what was overwritten.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.decoding import loop
from jaxspec.decoding.decode_state import enlarge
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.speculation import Speculation
from jaxspec.engine.prefix_cache import copied
from jaxspec.methods.method import parse_method
from tests.lossless.harness import begun, models, requests, rounds_of, speculation, weights, with_dspark

NEW, SMALL, LARGE = 40, 32, 80
METHODS = (
    "draft-model+chain,length=8",
    "edd,history=3+static,paths=0:1:00:01:000+cali-ts",
    "dflash+chain",
    *(
        pytest.param(name, marks=pytest.mark.soak)
        for name in (
            "eagle+eagle2,total=12,depth=4,width=3",
            "early-exit+chain,length=4",
            "eagle3+eagle2,total=12,depth=4,width=3",
            "ngram+chain,length=12",
            "medusa+static",
        )
    ),
)


@pytest.mark.parametrize("name", METHODS)
def test_a_cache_that_grows_shows_nowhere(name: str):
    spec, known = speculation(parse_method(name), greedy=False), models(vocab_size=23)
    spec = dataclasses.replace(spec, log_probs=True, tree_sizes=())
    chosen = weights(spec, with_dspark(known))
    for longest in range(13, 19):  # so that rounds begin with each number of rows left
        compare(spec, chosen, longest)
    keeps_finished_texts(spec, chosen)


def keeps_finished_texts(spec: Speculation, chosen: Models) -> None:
    """A finished text may fill its row to the last column; rounds of other rows change none of it."""
    rng = np.random.default_rng(1)
    asked = requests([[3], [1, 4, 1, 5], [9, 2]], 12, temperature=0.7)
    state = begun(spec, chosen, asked, (), SMALL)
    ends = [SMALL - spec.builder.depth - 2, SMALL - 2, SMALL, 3]  # the fourth row has no request
    lengths = jnp.array([ends[0], ends[1], int(state.length[2]), ends[3]])
    for full in (lengths, lengths.at[0].set(SMALL - 1).at[1].set(ends[2])):
        tokens = jnp.asarray(rng.integers(0, 23, state.tokens.shape), jnp.int32).at[2].set(state.tokens[2])
        log_prob = jnp.asarray(rng.random(tokens.shape), jnp.float32)
        done = jnp.array([True, True, False, True])
        before = dataclasses.replace(state, tokens=tokens + 0, log_prob=log_prob + 0, length=full + 0, done=done)
        after = loop.decode(spec, chosen, copied(before), jnp.int32(3))
        assert int(after.length[2]) > int(full[2]) and after.length[done].tolist() == full[done].tolist()
        assert after.log_prob is not None
        for row, length in enumerate(full.tolist()):
            assert after.tokens[row, :length].tolist() == tokens[row, :length].tolist()
            assert row == 2 or after.log_prob[row, :length].tolist() == log_prob[row, :length].tolist()


def compare(spec: Speculation, chosen: Models, longest: int) -> None:
    """Decodes three rows, the longest with a prompt of `longest` tokens, in a cache with room and in one that grows."""
    rng = np.random.default_rng(0)
    asked = [
        one
        for n, new in ((1, 9), (8, NEW), (longest, NEW))
        for one in requests([rng.integers(0, 23, n).tolist()], new, temperature=0.7)
    ]
    ends = []
    for rows in (LARGE, SMALL):
        state = begun(spec, chosen, asked, (), rows)
        while not bool(state.done.all()):
            before = int(state.round)
            state = loop.decode(spec, chosen, state, jnp.int32(LARGE))
            if int(state.round) == before:
                assert state.tokens.shape[1] == SMALL, "it ended although it had room"
                state = enlarge(spec.drafter, chosen, state, LARGE)
        ends.append(state)
    large, grown = ends
    assert grown.tokens.shape == large.tokens.shape, "it never grew"
    for row, length in enumerate(np.asarray(large.length)):
        assert grown.tokens[row, :length].tolist() == large.tokens[row, :length].tolist()
        np.testing.assert_allclose(grown.log_prob[row, :length], large.log_prob[row, :length], atol=1e-4)
    expected, found = rounds_of(large, len(asked)), rounds_of(grown, len(asked))
    assert expected.accepted.sum() > 0
    for field in ("committed", "accepted", "levels", "drafted", "verified"):
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))
