"""Every rule that is known to be wrong fails the battery's distribution test, so the test has power.

So does every controller that takes back the token at which it stopped, if it looked at that token to decide.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from jaxspec.builders.chain import Chain
from jaxspec.builders.static import Static, parse_paths
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.controllers.cali_ts import CaliTS
from jaxspec.controllers.fixed import Fixed
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.drafter import Models, for_each
from jaxspec.decoding.rule import Proposal, Rule
from jaxspec.decoding.sampling import argmax, gumbel, probabilities
from jaxspec.decoding.tree import Selection, compaction, levels, take
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.methods.method import Method, parse_method
from jaxspec.rules import rejection_sampling
from jaxspec.rules.greedy import Greedy, follow, propose_top_k
from jaxspec.rules.gumbel_coupling import GumbelCoupling
from jaxspec.rules.rejection_sampling import RejectionSampling
from tests.lossless.combinations import some
from tests.lossless.distribution import FALSE_ALARM, VOCAB, p_value
from tests.lossless.harness import models, run, speculation, with_rule
from tests.lossless.test_coupling import mixed

BUSHY = Static(paths=parse_paths("0:1:2:00:01:10:000"))


@pytest.fixture(scope="module")
def target() -> Models:
    return models(VOCAB, num_layers=1)


SAMPLED, COUPLED = RejectionSampling(), GumbelCoupling()
FIXED = Fixed()


@dataclasses.dataclass(frozen=True)
class Wrong(Rule):
    """Proposes as one rule does and verifies as another, or by a function."""

    propose_by: Callable[..., Proposal]
    verify_by: Callable[..., Any] = SAMPLED.verify
    may_prune: ClassVar[bool] = False
    keeps_probs: ClassVar[bool] = True

    def draft_probs(self, sampling, drafts) -> jax.Array:
        return SAMPLED.draft_probs(sampling, drafts)

    def propose(self, draws, drafts, width, count) -> Proposal:
        return self.propose_by(draws, drafts, width, count)

    def verify(self, draws, tree, logits, depth):
        return self.verify_by(draws, tree, logits, depth)


class WrongAndPruned(Wrong):
    """The same, whose children may be dropped by their own value."""

    may_prune: ClassVar[bool] = True


class WrongAndCoupled(WrongAndPruned):
    """The same, whose verification does not need the draft probabilities."""

    keeps_probs: ClassVar[bool] = False


def sampled_with(**replaced: Any) -> Callable[..., Any]:
    """Verification by rejection sampling, with functions of it replaced."""

    def verify(draws, tree, logits, depth):
        with mock.patch.multiple(rejection_sampling, **replaced):
            return SAMPLED.verify(draws, tree, logits, depth)

    return verify


def without_the_stopper(draws, tree, logits, depth):
    """Does not verify the token at which a chain stopped short of its cap."""
    last = levels(tree)[:, None]
    stopper = (tree.depth == last) & (last < depth)
    return SAMPLED.verify(draws, dataclasses.replace(tree, live=tree.live & ~stopper), logits, depth)


def coupled_with(noise_of: Callable[..., jax.Array]) -> Wrong:
    """Gumbel coupling whose target does not use the noise that plain decoding draws with."""

    def verify(draws, tree, logits, depth):
        return follow(tree, argmax(jnp.log(probabilities(logits, draws.sampling)) + noise_of(draws, tree)), depth)

    return WrongAndCoupled(COUPLED.propose, verify)


sampled = SAMPLED.propose


def top_k_with_softmax(draws, drafts, width, count) -> Proposal:
    return propose_top_k(drafts, width, count)


def sampled_then_sorted(draws, drafts, width, count) -> Proposal:
    found = sampled(draws, drafts, width, count)
    order = jnp.argsort(-found.log_prob, axis=-1)
    take = lambda x: jnp.take_along_axis(x, order, axis=-1)
    return Proposal(token=take(found.token), log_prob=take(found.log_prob), live=take(found.live))


def independent(draws, drafts, width, count) -> Proposal:
    """`count` draws with replacement, duplicates kept."""
    probs = for_each(SAMPLED.draft_probs(draws.sampling, drafts), width)
    own = gumbel(draws.keys, (count, *probs.shape[1:]))
    token = (jnp.log(probs)[:, None] + own).argmax(-1).swapaxes(1, 2)
    log_prob = jnp.log(jnp.take_along_axis(probs, token, axis=-1))
    return Proposal(token=token, log_prob=log_prob, live=log_prob > -jnp.inf)


def independent_without_duplicates(draws, drafts, width, count) -> Proposal:
    found = independent(draws, drafts, width, count)
    same = found.token[..., None] == found.token[..., None, :]
    earlier = jnp.tril(jnp.ones((count, count), bool), -1)
    return dataclasses.replace(found, live=~(same & earlier).any(-1))


def untouched(q, token):
    return q


@dataclasses.dataclass(frozen=True)
class DropsByConfidence(TreeBuilder):
    """A builder that drops nodes whose own probability is low, which is sound only where none was drawn."""

    name: ClassVar[str] = "drops"
    prunes: ClassVar[bool] = True
    varies: ClassVar[bool] = True
    inner: TreeBuilder
    least: float

    @property
    def depth(self) -> int:
        return self.inner.depth

    @property
    def size(self) -> int:
        return self.inner.size

    def grow(self, propose, tree, frontier, active):
        return self.inner.grow(propose, tree, frontier, active)

    def prune(self, tree) -> Selection:
        keep = tree.live & (tree.log_confidence >= jnp.log(self.least))
        keep = (keep[:, None, :] | ~tree.ancestors).all(-1) & keep
        return compaction(dataclasses.replace(tree, live=keep))


def of_each_node(draws, tree) -> jax.Array:
    return gumbel(draws.keys, (tree.token.shape[1], draws.noise.shape[-1]))


def of_the_round(draws, tree) -> jax.Array:
    return take(gumbel(draws.keys, draws.noise.shape[1:])[:, ::-1], tree.depth)


def of_the_root(draws, tree) -> jax.Array:
    return draws.noise[:, :1]


@dataclasses.dataclass(frozen=True)
class Looks(Controller):
    """A controller that decides by something else than `inner` would, which still keeps the state."""

    name: ClassVar[str] = "looks"
    decide: Callable[..., jax.Array]
    inner: Controller = FIXED

    @property
    def needs_weights(self) -> bool:
        return self.inner.needs_weights

    def init(self, batch):
        return self.inner.init(batch)

    def keep_drafting(self, models, keys, state, signals):
        return self.decide(self.inner, models, keys, state, signals)

    def update(self, state, counts):
        return self.inner.update(state, counts)


def by_own_probability(inner, models, keys, state, signals):
    return signals.token_prob >= 0.3


def by_prediction_from_the_token(inner, models, keys, state, signals):
    """Cali-TS, with a predictor that gets the token's own probability where it should see what gave the token."""
    kernel = models.control.draft.kernel[...]
    logit = 20 * (signals.token_prob - 0.3)
    seen = logit[:, None] * (kernel[:, 1] - kernel[:, 0])
    return inner.keep_drafting(models, keys, state, dataclasses.replace(signals, draft_hidden=seen))


def score(builder: TreeBuilder, rule: Rule, target: Models, controller: Controller = FIXED) -> float:
    method = Method(drafter=DraftModel(), builder=builder, controller=controller, head="draft-model")
    return p_value(with_rule(method, rule), target, temperature=0.5)


WRONG = {
    "candidates verified against their softmax": (BUSHY, Wrong(top_k_with_softmax)),
    "without replacement, q never renormalised": (BUSHY, Wrong(sampled, sampled_with(without=untouched))),
    "without replacement, then sorted by q": (BUSHY, Wrong(sampled_then_sorted)),
    "independent draws, duplicates skipped": (
        BUSHY,
        Wrong(independent_without_duplicates, sampled_with(without=untouched)),
    ),
    "sampled tree, pruned by confidence": (DropsByConfidence(BUSHY, 0.2), WrongAndPruned(sampled)),
    "sampled chain, last token dropped by its confidence": (DropsByConfidence(Chain(2), 0.3), WrongAndPruned(sampled)),
    "bonus token without the residual": (BUSHY, Wrong(sampled, sampled_with(residual=lambda p, q: p))),
    "greedy verification of a sampled text": (BUSHY, Wrong(sampled, Greedy().verify)),
    "the root's noise for all of a path": (BUSHY, coupled_with(of_the_root)),
}

RIGHT = {
    "rejection sampling without replacement": (BUSHY, SAMPLED),
    "coupled, pruned by confidence": (DropsByConfidence(BUSHY, 0.2), COUPLED),
    "noise of each node": (BUSHY, coupled_with(of_each_node)),
    "independent draws, duplicates tested again": (BUSHY, Wrong(independent, sampled_with(without=untouched))),
}


UNREPEATABLE = {  # of the right distribution, but not plain decoding's text for the same seed
    "rejection sampling": SAMPLED,
    "noise of each node": coupled_with(of_each_node),
    "noise of the round": coupled_with(of_the_round),
}

CHAIN = Chain(3)
STOPS = {  # a chain's last token is dropped where one of these stopped; whether the decision looked at that token
    "by the token's own probability": (Looks(by_own_probability), True),
    "by a prediction from the token": (Looks(by_prediction_from_the_token, inner=CaliTS()), True),
    "by a coin": (BetaTS(prior_alpha=1.0), False),
    "by a prediction from what gave the token": (CaliTS(), False),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_stop_that_takes_its_token_back(name: str, target):
    controller, looks = STOPS[name]
    dropped = score(CHAIN, Wrong(sampled, without_the_stopper), target, controller)
    assert dropped < FALSE_ALARM if looks else dropped > FALSE_ALARM


def test_a_stop_that_looks_at_its_token_and_keeps_it(target):
    assert score(CHAIN, SAMPLED, target, Looks(by_own_probability)) > FALSE_ALARM


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if i % 3 else ()) for i, name in enumerate(WRONG)]
)
def test_wrong_rule_is_seen(name: str, target):
    builder, rule = WRONG[name]
    assert score(builder, rule, target) < FALSE_ALARM


@pytest.mark.parametrize("name", RIGHT)
def test_right_rule_passes(name: str, target):
    builder, rule = RIGHT[name]
    assert score(builder, rule, target) > FALSE_ALARM


@pytest.mark.parametrize("name", some(["coupled", *UNREPEATABLE], "coupled", "noise of the round"))
def test_the_text_is_plain_decodings_by_the_coupled_rule_alone(name: str):
    rule = {"coupled": COUPLED, **UNREPEATABLE}[name]
    target, asked = models(vocab_size=23), mixed([[1], [5, 6, 7], [3] * 9, [2, 8]], 20)
    method = Method(drafter=DraftModel(), builder=BUSHY, controller=FIXED, head="draft-model")
    plain, _ = run(speculation(parse_method("plain"), False), target, asked)
    texts, _ = run(with_rule(method, rule), target, asked)
    assert (texts == plain) == (rule == COUPLED)


def test_a_builder_that_drops_nodes_never_gets_sampled_children():
    method = Method(drafter=DraftModel(), builder=DropsByConfidence(BUSHY, 0.2), controller=Fixed(), head="draft-model")
    assert not method.rule(greedy=False).keeps_probs
    assert not RejectionSampling.may_prune
