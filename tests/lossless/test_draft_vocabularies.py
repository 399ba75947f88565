"""Heads that were cut to a draft vocabulary, and draft models that are padded otherwise than their target: the text is
the target's, and every token that they have is drafted."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.decoding.drafter import Models, Prefix
from jaxspec.decoding.tree import init_tree
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.drafters.early_exit import EarlyExit
from jaxspec.methods.method import parse_method
from tests.lossless import combinations, distribution
from tests.lossless.harness import (
    NEW,
    check_texts,
    models,
    requests,
    run,
    run_refilled,
    speculation,
    with_draft_vocabulary,
    with_padding,
)

DRAFTERS = ("draft-model", "dflash", "eagle", "early-exit", "edd", "medusa", "layer-skip")  # all whose heads can be cut
PADDED = {
    "draft-model, fewer rows": lambda size: size - size // 5,
    "draft-model, more rows": lambda size: size * 5 // 4,
}
EVERY = (*DRAFTERS, *PADDED)
KINDS = ("dflash", "medusa", "draft-model")  # one each with the target's LM head, with heads of its own, and a model
FEW = combinations.some(EVERY, "medusa", "draft-model, fewer rows")
TREE = "eagle2,total=12,depth=4,width=3"
PATHS = "static,paths=0:1:2:00:01:10:000+threshold,gamma=0.2,confidence=token"


def changed(name: str, whole: Models, ids: Sequence[int]) -> Models:
    """The models whose heads have these tokens only, or whose draft model has another number of rows."""
    if name not in PADDED:
        return with_draft_vocabulary(whole, ids)
    return with_padding(whole, PADDED[name](whole.target.config.vocab_size))


def method_of(name: str, rest: str) -> str:
    return f"{name.partition(', ')[0]}+{rest}"


@pytest.mark.parametrize("name", combinations.some(EVERY, "dflash", "draft-model", "edd"))
def test_greedy_text_is_plain_decodings(name: str, target, prompts, plain):
    spec, others = speculation(parse_method(method_of(name, TREE)), True), changed(name, target, range(0, 23, 2))
    check_texts(spec, others, requests(prompts, NEW), plain)
    if name in DRAFTERS:
        each = [(3, 9), (0, NEW), (1, 1), (2, 17), (0, 5), (3, NEW)]
        asked = [request for i, budget in each for request in requests([prompts[i]], budget)]
        assert run_refilled(spec, others, asked) == [plain[i][:budget] for i, budget in each]


@pytest.mark.parametrize("drafter", combinations.some(DRAFTERS, *KINDS))
def test_without_tokens_that_never_come_no_draft_is_lost(drafter: str, target, prompts, plain):
    """What the whole head drafts and the target accepts is in the text, so the cut head drafts it too."""
    spec, used = (
        speculation(parse_method(f"{drafter}+chain,length=4"), True),
        {token for text in plain for token in text},
    )
    assert len(used) < 23, "the texts have every token, so nothing is cut"
    _, whole = run(spec, target, requests(prompts, NEW))
    texts, cut = run(spec, with_draft_vocabulary(target, sorted(used)), requests(prompts, NEW))
    assert texts == plain
    rounds = lambda history: (history.committed > 0).sum(axis=1)
    assert (rounds(cut) <= rounds(whole)).all()


@pytest.mark.parametrize("name", FEW)
def test_sampled_distribution_is_the_targets(name: str):
    """With another padding the target gives a token that is never drafted, or the draft model has rows without one."""
    method = parse_method(method_of(name, PATHS))
    whole = models(distribution.VOCAB, num_layers=2 if isinstance(method.drafter, EarlyExit) else 1)
    p_value = distribution.p_value(speculation(method, False), changed(name, whole, [0, 1, 3]), 0.7, 0.8)
    assert p_value > distribution.FALSE_ALARM


@pytest.mark.parametrize("name", FEW)
def test_coupled_text_is_plain_decodings(name: str, target, prompts):
    method, asked = method_of(name, TREE), requests(prompts, NEW, seed=3, temperature=0.8)
    assert combinations.is_coupled(method)
    expected, _ = run(speculation(parse_method("plain"), False), target, asked)
    check_texts(speculation(parse_method(method), False), changed(name, target, range(0, 23, 2)), asked, expected)


@pytest.mark.parametrize("name", PADDED)
def test_the_shared_tokens_are_drafted(name: str, target, prompts):
    """As without padding, but for the share of the tokens that only one of the two has."""
    padded, rows = changed(name, target, ()), PADDED[name](23)
    shared, known = min(rows, 23), dataclasses.replace(padded, draft=padded.draft[DraftModel])
    assert max(map(max, prompts)) >= PADDED["draft-model, fewer rows"](23)
    logits = np.random.default_rng(0).standard_normal((2, rows)).astype(np.float32)
    state = dataclasses.replace(DraftModel().init(known, 2, 8), logits=jnp.asarray(logits))
    prefix = Prefix(token=jnp.zeros((2, 8), jnp.int32), length=jnp.ones(2, jnp.int32), cache=())
    drafts, _ = DraftModel().root(known, state, prefix, init_tree(jnp.zeros(2, jnp.int32), 4, None))
    ids = np.arange(23) if drafts.token is None else np.asarray(drafts.token)[0, 0]
    np.testing.assert_array_equal(ids, np.arange(shared))
    given = jax.nn.log_softmax(drafts.logits[:, 0])
    np.testing.assert_allclose(given, jax.nn.log_softmax(logits[:, :shared]), atol=1e-6)
