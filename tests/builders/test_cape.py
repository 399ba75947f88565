"""CAPE: how wide each level is, and where it hangs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxspec.builders.cape import Cape
from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.rule import Proposal
from jaxspec.decoding.sampling import Sampling, fold
from jaxspec.rules.rejection_sampling import RejectionSampling
from tests.builders.tables import grown, paths_of, tables

VOCAB = 10


def surest(token: int, top: float) -> list[float]:
    """A distribution whose largest probability is that of `token`; the rest fall off slowly, in order."""
    rest = np.linspace(1.5, 1.0, VOCAB - 1)
    probs = np.insert((1 - top) * rest / rest.sum(), token, top)
    assert probs.argmax() == token
    return probs.tolist()


TABLE = [surest(t + 1, top) for t, top in enumerate((0.25, 0.5, 0.7, 0.9, 0.31))] + [surest(0, 0.2)] * 5


def test_a_tree_worked_out_by_hand():
    """Down the path 1, 2, 3, 4, 5: 7 children, then 5, 3, 1 and 5."""
    found = paths_of(grown(Cape(), TABLE))
    by_level = [sorted(path for path in found if len(path) == level) for level in range(1, 6)]
    assert [len(level) for level in by_level] == [7, 5, 3, 1, 5]
    assert all({path[:-1] for path in level} == {(1, 2, 3, 4)[: len(level[0]) - 1]} for level in by_level)
    assert {path[-1] for path in by_level[2]} == {3, 0, 1}  # the top three after token 2


def test_rows_do_not_see_each_other():
    together = grown(Cape(depth=3), TABLE, roots=(0, 2, 3))
    assert [paths_of(together, row) for row in range(3)] == [
        paths_of(grown(Cape(depth=3), TABLE, roots=(root,))) for root in (0, 2, 3)
    ]


def sampled(drafts: Drafts, width: int, count: int) -> Proposal:
    """Children drawn without replacement."""
    batch = drafts.logits.shape[0]
    keys = jax.vmap(jax.random.key)(jnp.arange(batch))
    keys = fold(keys, (drafts.logits[:, 0].argmax(axis=-1)).astype(jnp.int32))
    hot = Sampling(temperature=jnp.ones(batch), top_k=None, top_p=None)
    noise = jnp.zeros((batch, drafts.logits.shape[-1]))
    return RejectionSampling().propose(keys, noise, hot, drafts, width, count)


@given(tables(vocab_size=8))
def test_sampled_children_hang_under_the_first_drawn(table):
    tree = grown(Cape(depth=3), table, roots=(0, 1, 2), propose=sampled)
    for row in range(3):
        found = list(paths_of(tree, row))
        path: tuple[int, ...] = ()
        for level in range(1, 4):
            siblings = [p for p in found if len(p) == level]
            assert siblings and {p[:-1] for p in siblings} == {path}
            top = table[(row, *path)[-1]].max()
            wanted = 7 if top <= 0.3 else 5 if top <= 0.6 else 3 if top <= 0.8 else 1
            assert len(siblings) <= wanted
            assert len(siblings) == wanted or (table[(row, *path)[-1]] < 1e-6).any()
            path = siblings[0]


def test_refusals():
    with pytest.raises(ValueError, match="cape: depth must be at least 1"):
        Cape(depth=0)
