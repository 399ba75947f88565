"""How history changes a head's drafts."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.decoding.drafts import Drafts
from jaxspec.drafters.history import with_copies
from jaxspec.drafters.ngram import Ngram
from jaxspec.methods.method import Method, parse_method

NONE = jnp.zeros(2, bool)


def probabilities(drafts: Drafts, vocab: int) -> np.ndarray:
    """[B, W, V]: the head's, each distribution's sum left as it is where candidates are given."""
    logits = np.asarray(drafts.logits, np.float64)
    if drafts.token is None:
        return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    found = np.zeros((*logits.shape[:2], vocab))
    for b, w in np.ndindex(*logits.shape[:2]):
        live = ~np.isneginf(logits[b, w])
        ids = np.asarray(drafts.token)[b, w][live]
        assert len(set(ids.tolist())) == len(ids), "a token is a candidate twice"
        found[b, w, ids] = np.exp(logits[b, w][live])
    return found


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("among", [None, [0, 2, 3, 6]])
def test_a_token_has_at_least_its_weight(shared: bool, among: list[int] | None):
    rng = np.random.default_rng(0)
    count = 7 if among is None else len(among)
    logits = jnp.asarray(rng.normal(size=(2, 1 if shared else 3, count)), jnp.float32)
    logits -= jnp.log(jnp.exp(logits).sum(axis=-1, keepdims=True))
    ids = None if among is None else jnp.array(among)[None, None]
    given = Drafts(logits=logits, token=ids, hidden=jnp.ones((2, logits.shape[1], 5)))
    token, chance = jnp.array([[2, 3, 5], [6, 1, 0]]), jnp.array([[0.9, 0.0, 0.7], [0.01, 0.5, 0.99]])
    whole = Drafts(
        logits=jnp.broadcast_to(logits, (2, 3, count)),
        token=None if ids is None else jnp.broadcast_to(ids, (2, 3, count)),
    )
    before, after = probabilities(whole, 7), probabilities(with_copies(given, token, chance, NONE), 7)
    for b, w in np.ndindex(2, 3):
        kept, now, t, p = before[b, w], after[b, w], int(token[b, w]), float(chance[b, w])
        if kept[t] >= p:
            np.testing.assert_allclose(now, kept, rtol=1e-5)
            continue
        weight = kept.copy()
        weight[6 if among and t not in among else t] = 0
        weight[t] = p
        np.testing.assert_allclose(now, weight / weight.sum(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("among", [None, [0, 2, 3, 6]])
def test_of_a_copied_row_there_is_one_child(among: list[int] | None):
    count = 7 if among is None else len(among)
    ids = None if among is None else jnp.array(among)[None, None]
    drafts = Drafts(logits=jnp.zeros((2, 1, count)), token=ids)
    token = jnp.array([[5], [2]])
    found = with_copies(drafts, token, jnp.array([[0.3], [0.0]]), jnp.array([True, True]))
    assert (np.asarray(found.logits) == 0).sum(axis=-1).tolist() == [[1], [1]]
    assert probabilities(found, 7)[[0, 1], 0, [5, 2]].tolist() == [1, 1]


def test_a_head_that_abstains_gets_the_token():
    drafts = Drafts(logits=jnp.full((2, 1, 4), -jnp.inf))
    found = with_copies(drafts, jnp.array([[3], [1]]), jnp.array([[0.25], [0.0]]), NONE)
    np.testing.assert_allclose(np.exp(found.logits[:, 0]), [[0, 0, 0, 0.2], [0, 0, 0, 0]], rtol=1e-6)


def test_what_users_type():
    method = parse_method("eagle@mine,history=5+chain,length=7")
    assert method.history == 5 and method.head == "mine"
    assert str(method) == "eagle@mine,history=5+chain,length=7+fixed"
    assert parse_method(str(method)) == method
    assert str(parse_method("eagle,history=0")) == str(parse_method("eagle"))
    assert parse_method("eagle").history == 0


@pytest.mark.parametrize("text", ["eagle,history=x", "eagle,history=-1", "eagle,history=3,history=4", "eagle,history"])
def test_what_is_wrong_is_said(text: str):
    with pytest.raises(ValueError, match="write history=N once"):
        parse_method(text)


def test_bounds():
    with pytest.raises(ValueError, match="eagle: history must be at most 16, not 17"):
        parse_method("eagle,history=17")
    with pytest.raises(ValueError, match="ngram has no setting 'history=3'"):
        parse_method("ngram,history=3")
    with pytest.raises(ValueError, match="ngram has no head for history to stand beside"):
        Method(Ngram(), history=3)


def test_a_candidate_that_only_pads_is_taken_once():
    drafts = Drafts(logits=jnp.log(jnp.array([[[0.5, 0.0, 0.25, 0.0]]])), token=jnp.array([[[3, 1, 2, 1]]]))
    found = with_copies(drafts, jnp.array([[1]]), jnp.array([[0.5]]), NONE[:1])
    np.testing.assert_allclose(probabilities(found, 4)[0, 0], [0, 0.5 / 1.5, 0.25 / 1.5, 0.5 / 1.5], rtol=1e-6)
