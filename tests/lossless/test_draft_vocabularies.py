"""Heads that were cut to a draft vocabulary, and draft models that are padded otherwise than their target: the text is
the target's, and every token that they have is drafted."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.decoding.drafter import Prefix
from jaxspec.decoding.tree import init_tree
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.drafters.early_exit import EarlyExit
from jaxspec.methods.method import parse_method
from tests.lossless import combinations, test_sampling
from tests.lossless.harness import (
    models,
    requests,
    run,
    run_refilled,
    speculation,
    with_draft_vocabulary,
    with_padding,
)

NEW, VOCAB = 40, 23
DRAFTERS = ("draft-model", "dflash", "eagle", "early-exit", "edd", "medusa", "layer-skip")  # all whose heads can be cut
SOME = [pytest.param(name, marks=() if name in ("eagle", "medusa") else pytest.mark.soak) for name in DRAFTERS]
TREE = "eagle2,total=12,depth=4,width=3"
PATHS = "static,paths=0:1:2:00:01:10:000+threshold,gamma=0.2,confidence=token"


@pytest.fixture(scope="module")
def target():
    return models(VOCAB)


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB, size=n).tolist() for n in (1, 8, 13, 25)]


@pytest.fixture(scope="module")
def plain(target, prompts):
    return run(speculation(parse_method("plain"), True), target, requests(prompts, NEW))[0]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_text_is_plain_decodings(drafter: str, target, prompts, plain):
    method = parse_method(f"{drafter}+{TREE}")
    cut = with_draft_vocabulary(target, range(0, VOCAB, 2))
    texts, history = run(speculation(method, True), cut, requests(prompts, NEW))
    assert texts == plain
    assert history.accepted.sum() > 0, "no draft was accepted, so nothing was tested"
    each = [(3, 9), (0, NEW), (1, 1), (2, 17), (0, 5), (3, NEW)]
    asked = [request for i, budget in each for request in requests([prompts[i]], budget)]
    expected = [plain[i][:budget] for i, budget in each]
    assert run_refilled(speculation(method, True), cut, asked) == expected


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_without_tokens_that_never_come_no_draft_is_lost(drafter: str, target, prompts, plain):
    """What the whole head drafts and the target accepts is in the text, so the cut head drafts it too."""
    method = parse_method(f"{drafter}+chain,length=4")
    used = {token for text in plain for token in text}
    assert len(used) < VOCAB, "the texts have every token, so nothing is cut"
    _, whole = run(speculation(method, True), target, requests(prompts, NEW))
    texts, cut = run(speculation(method, True), with_draft_vocabulary(target, sorted(used)), requests(prompts, NEW))
    assert texts == plain
    rounds = lambda history: (history.committed > 0).sum(axis=1)
    assert (rounds(cut) <= rounds(whole)).all()


@pytest.mark.parametrize("drafter", SOME)
def test_sampled_distribution_is_the_targets(drafter: str):
    method = parse_method(f"{drafter}+{PATHS}")
    whole = models(test_sampling.VOCAB, num_layers=2 if isinstance(method.drafter, EarlyExit) else 1)
    counts = test_sampling.sample(speculation(method, False), with_draft_vocabulary(whole, [0, 1, 3]), 0.7, 0.8)
    assert test_sampling.p_value(counts, test_sampling.enumerate_joint(whole, 0.7, 0.8)) > test_sampling.FALSE_ALARM


@pytest.mark.parametrize("drafter", SOME)
def test_coupled_text_is_plain_decodings(drafter: str, target, prompts):
    name = f"{drafter}+{TREE}"
    assert combinations.is_coupled(name)
    asked = requests(prompts, NEW, seed=3, temperature=0.8)
    expected, _ = run(speculation(parse_method("plain"), False), target, asked)
    texts, history = run(
        speculation(parse_method(name), False), with_draft_vocabulary(target, range(0, VOCAB, 2)), asked
    )
    assert texts == expected
    assert history.accepted.sum() > 0


FEWER, MORE = VOCAB - 4, VOCAB + 5
"""Rows of draft models with another padding. The prompts have tokens beyond the first."""
SIZES = [FEWER, pytest.param(MORE, marks=pytest.mark.soak)]


@pytest.mark.parametrize("rows", [FEWER, MORE])
def test_the_shared_tokens_are_drafted(rows: int, target):
    """As without padding, but for the share of the tokens that only one of the two has."""
    padded, shared = with_padding(target, rows), min(rows, VOCAB)
    models = dataclasses.replace(padded, draft=padded.draft[DraftModel])
    logits = np.random.default_rng(0).standard_normal((2, rows)).astype(np.float32)
    state = dataclasses.replace(DraftModel().init(models, 2, 8), logits=jnp.asarray(logits))
    prefix = Prefix(token=jnp.zeros((2, 8), jnp.int32), length=jnp.ones(2, jnp.int32), cache=())
    drafts, _ = DraftModel().root(models, state, prefix, init_tree(jnp.zeros(2, jnp.int32), 4, None))
    ids = np.arange(VOCAB) if drafts.token is None else np.asarray(drafts.token)[0, 0]
    np.testing.assert_array_equal(ids, np.arange(shared))
    given = jax.nn.log_softmax(drafts.logits[:, 0])
    np.testing.assert_allclose(given, jax.nn.log_softmax(logits[:, :shared]), atol=1e-6)


@pytest.mark.parametrize("rows", SIZES)
def test_greedy_text_with_another_padding(rows: int, target, prompts, plain):
    assert max(map(max, prompts)) >= FEWER
    padded = with_padding(target, rows)
    texts, history = run(speculation(parse_method(f"draft-model+{TREE}"), True), padded, requests(prompts, NEW))
    assert texts == plain
    assert history.accepted.sum() > 0


@pytest.mark.parametrize("more", [-1, pytest.param(2, marks=pytest.mark.soak)])
def test_sampled_distribution_with_another_padding(more: int):
    """The target says a token that is never drafted, or the draft model has rows for tokens that are none."""
    method, whole = parse_method(f"draft-model+{PATHS}"), models(test_sampling.VOCAB, num_layers=1)
    padded = with_padding(whole, test_sampling.VOCAB + more)
    counts = test_sampling.sample(speculation(method, False), padded, 0.7, 0.8)
    assert test_sampling.p_value(counts, test_sampling.enumerate_joint(whole, 0.7, 0.8)) > test_sampling.FALSE_ALARM


@pytest.mark.soak
@pytest.mark.parametrize("rows", [FEWER, MORE])
def test_coupled_text_with_another_padding(rows: int, target, prompts):
    asked = requests(prompts, NEW, seed=3, temperature=0.8)
    expected, _ = run(speculation(parse_method("plain"), False), target, asked)
    texts, history = run(speculation(parse_method(f"draft-model+{TREE}"), False), with_padding(target, rows), asked)
    assert texts == expected
    assert history.accepted.sum() > 0
