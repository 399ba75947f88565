"""How history changes a head's drafts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.decoding.drafter import Drafts, log_top
from jaxspec.decoding.rule import Draws, Rule
from jaxspec.decoding.sampling import Sampling
from jaxspec.drafters.history import with_copies
from jaxspec.drafters.ngram import Ngram
from jaxspec.methods.method import Method, parse_method
from jaxspec.rules import Greedy, GumbelCoupling, RejectionSampling
from tests.controllers.rounds import keys_of

COPIES, TOP = jax.jit(with_copies), jax.jit(log_top)
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
    before, after = probabilities(whole, 7), probabilities(COPIES(given, token, chance, NONE), 7)
    for b, w in np.ndindex(2, 3):
        kept, now, t, p = before[b, w], after[b, w], int(token[b, w]), float(chance[b, w])
        if kept[t] >= p:
            np.testing.assert_allclose(now, kept, rtol=1e-5)
            continue
        others = kept * (1 - p) / (1 - kept[t])
        others[[t, 6 if among and t not in among else t]] = 0
        others[t] = p
        np.testing.assert_allclose(now, others, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("among", [None, [0, 2, 3, 6]])
@pytest.mark.parametrize("rule", [Greedy(), GumbelCoupling(), RejectionSampling()])
def test_a_copied_token_is_the_only_child_and_its_confidence_is_its_chance(rule: Rule, among: list[int] | None):
    """In a row that copies, and after nodes where the head abstains; there is no child without a chance."""
    count = 7 if among is None else len(among)
    ids = None if among is None else jnp.array(among)[None, None]
    head = jnp.zeros((4, 2, count)) - jnp.log(count)
    drafts = Drafts(logits=head.at[2:].set(-jnp.inf), token=ids)
    token = jnp.array([[5, 2], [2, 3], [6, 4], [0, 1]])
    chance = jnp.array([[0.3, 0.9], [0.01, 0.5], [0.2, 0], [0, 0.6]])
    found = COPIES(drafts, token, chance, jnp.array([True, True, False, False]))
    sampling = Sampling(temperature=jnp.array([0.0, 0.5, 1.0, 1.3]), top_k=None, top_p=None)
    draws = Draws(sampling=sampling, keys=keys_of(4), noise=jnp.ones((4, 7)).at[:, 3].set(9.0), level=jnp.int32(1))
    proposal = jax.jit(rule.propose, static_argnums=(2, 3))(draws, found, 2, 3)
    assert proposal.live[..., 1:].sum() == 0 and (proposal.live[..., 0] == (chance > 0)).all()
    likely = np.asarray(chance) > 0
    assert np.asarray(proposal.token)[..., 0][likely].tolist() == np.asarray(token)[likely].tolist()
    np.testing.assert_allclose(np.exp(np.asarray(proposal.log_prob)[..., 0][likely]), chance[likely], rtol=1e-5)
    top = TOP(found, jnp.array([[1], [0], [0], [1]]))
    np.testing.assert_allclose(np.exp(top), [0.9, 0.01, 0.2, 0.6], rtol=1e-5)


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
    with pytest.raises(ValueError, match="ngram has no head, which history needs"):
        Method(Ngram(), history=3)


def test_a_candidate_that_only_pads_is_taken_once():
    drafts = Drafts(logits=jnp.log(jnp.array([[[0.5, 0.0, 0.25, 0.0]]])), token=jnp.array([[[3, 1, 2, 1]]]))
    found = COPIES(drafts, jnp.array([[1]]), jnp.array([[0.5]]), NONE[:1])
    np.testing.assert_allclose(probabilities(found, 4)[0, 0], [0, 0.5, 0.125, 0.25], rtol=1e-6)
