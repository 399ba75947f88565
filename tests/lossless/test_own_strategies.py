"""Strategies from outside, by all that the contract allows: drafts shared by a level or of candidates, and controllers
that draw once a round."""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Bool, Int, Key

from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Committed, Drafter, Drafts, Models, Prefix, State
from jaxspec.decoding.tree import DraftTree, Frontier
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.methods.method import Method, parse_method
from jaxspec.rules import GumbelCoupling, RejectionSampling
from tests.lossless.combinations import some
from tests.lossless.distribution import FALSE_ALARM, VOCAB, p_value
from tests.lossless.harness import NEW, check_texts, models, requests, run, speculation

INNER = DraftModel()


@final
@dataclasses.dataclass(frozen=True)
class Narrowed(Drafter):
    """The draft model, restricted to a part of its distribution.

    Attributes:
        shared: what follows the first node of a level stands for all of them.
        top: candidates, in place of the whole vocabulary.
    """

    name: ClassVar[str] = "narrowed"
    shared: bool = False
    top: int | None = None

    def init(self, models: Models, batch: int, cache_len: int) -> State:
        return INNER.init(models, batch, cache_len)

    def enlarge(self, models: Models, state: State, cache_len: int) -> State:
        return INNER.enlarge(models, state, cache_len)

    def observe(self, models: Models, state: State, committed: Committed) -> State:
        return INNER.observe(models, state, committed)

    def root(self, models: Models, state: State, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, State]:
        drafts, state = INNER.root(models, state, prefix, tree)
        return self.narrow(drafts), state

    def expand(
        self, models: Models, state: State, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, State]:
        drafts, state = INNER.expand(models, state, prefix, tree, frontier)
        return self.narrow(drafts), state

    def narrow(self, drafts: Drafts) -> Drafts:
        if self.shared:
            drafts = jax.tree.map(lambda x: x[:, :1], drafts)
        if self.top is None:
            return drafts
        log_prob, token = jax.lax.top_k(jax.nn.log_softmax(drafts.logits), self.top)
        return dataclasses.replace(drafts, logits=log_prob[..., ::-1], token=token[..., ::-1])  # in any order


@final
@dataclasses.dataclass(frozen=True)
class DrawsALength(Controller):
    """Draws how many levels a row drafts, when a round begins, and keeps that in its state."""

    name: ClassVar[str] = "draws-a-length"
    longest: int = 3

    def init(self, batch: int) -> Int[Array, " B"]:
        return jnp.full(batch, -1, jnp.int32)

    def begin(
        self,
        models: Models,
        keys: Key[Array, " B"],
        state: Int[Array, " B"],
        unfinished: Bool[Array, " B"],
        builder: TreeBuilder,
    ) -> tuple[Int[Array, " B"], Bool[Array, " B"]]:
        length = jax.vmap(lambda key: jax.random.randint(key, (), 0, self.longest + 1))(keys)
        return length, length > 0

    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: Int[Array, " B"], signals: DraftSignals
    ) -> Bool[Array, " B"]:
        return signals.level < state


def method(drafter: Drafter, rest: str, controller: Controller | None = None) -> Method:
    """A drafter with the builder and the controller that are typed, or this one."""
    typed = parse_method(f"draft-model+{rest}")
    return Method(drafter, typed.builder, controller or typed.controller)


def own_weights(everything: Models) -> Models:
    """The draft model's weights for the drafters above."""
    draft = everything.draft[DraftModel]
    return dataclasses.replace(everything, draft={DraftModel: draft, Narrowed: draft})


STATIC = "static,paths=0:1:2:00:01:10:000"
EAGLE2 = "eagle2,total=12,depth=4,width=3"
PRUNED = "pruned,width=3,depth=4,leaf=0.02,cost=0.1,total=12"
TOP_3 = Narrowed(top=3)
DRAWS = DrawsALength()

GREEDY = {
    "shared": method(Narrowed(shared=True), STATIC),
    "candidates": method(TOP_3, f"{EAGLE2}+threshold,gamma=0.2,confidence=token"),
    "fewer candidates than children": method(Narrowed(top=1), STATIC),
    "shared candidates": method(Narrowed(shared=True, top=3), "cape,depth=3+adaptive,gamma=0.3,alpha=0.5,epsilon=1.0"),
    "a length that is drawn": method(INNER, "chain,length=3", DRAWS),
}

SAMPLED = {
    "shared": (method(Narrowed(shared=True), "chain,length=3"), RejectionSampling),
    "candidates": (method(TOP_3, "chain,length=3+threshold,gamma=0.2,confidence=token"), RejectionSampling),
    "shared candidates": (method(Narrowed(shared=True, top=4), "chain,length=3"), RejectionSampling),
    "a length that is drawn": (method(INNER, "chain,length=3", DRAWS), RejectionSampling),
}

COUPLED = {
    "shared": method(Narrowed(shared=True), STATIC),
    "candidates": method(TOP_3, f"{STATIC}+threshold,gamma=0.2,confidence=token"),
    "shared candidates": method(Narrowed(shared=True, top=4), "cape,depth=3"),
    "shared, pruned": method(Narrowed(shared=True), EAGLE2),
    "candidates, pruned": method(TOP_3, PRUNED),
    "a length that is drawn": method(INNER, STATIC, DRAWS),
}


@pytest.fixture(scope="module")
def target() -> Models:
    return own_weights(models(vocab_size=23))


@pytest.mark.parametrize("name", some(GREEDY, "candidates", "shared candidates", "a length that is drawn"))
def test_greedy_text_is_plain_decodings(name: str, target, prompts, plain):
    check_texts(speculation(GREEDY[name], True), target, requests(prompts, NEW), plain)


@pytest.mark.parametrize("name", some(COUPLED, "shared", "candidates, pruned", "a length that is drawn"))
def test_coupled_text_is_plain_decodings(name: str, target, prompts):
    asked = requests(prompts, NEW, seed=5, temperature=0.9, top_p=0.9)
    spec = speculation(COUPLED[name], False)
    assert isinstance(spec.rule, GumbelCoupling)
    check_texts(spec, target, asked, run(speculation(parse_method("plain"), False), target, asked)[0])


@pytest.mark.parametrize("name", some(SAMPLED, "shared candidates", "a length that is drawn"))
@pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 0.8), pytest.param(1.0, 1.0, marks=pytest.mark.soak)])
def test_joint_distribution_is_the_targets(name: str, temperature: float, top_p: float):
    small = own_weights(models(VOCAB, num_layers=1))
    chosen, rule = SAMPLED[name]
    spec = speculation(chosen, False)
    assert isinstance(spec.rule, rule)
    assert p_value(spec, small, temperature, top_p) > FALSE_ALARM


def test_a_length_is_drawn_for_each_row_whatever_the_others(target, prompts):
    spec = speculation(GREEDY["a length that is drawn"], True)
    asked, others = requests(prompts, NEW), requests([[5], [7, 7, 7], [8] * 9, [2]], NEW, seed=9)
    _, together = run(spec, target, asked)
    drafted = together.committed > 0
    assert set(together.levels[drafted].tolist()) == {0, 1, 2, 3}
    assert (together.levels[0] != together.levels[1]).any(), "all rows draw the same"
    _, elsewhere = run(spec, target, [others[0], asked[3], others[2], asked[0]])
    rounds = min(together.levels.shape[1], elsewhere.levels.shape[1])
    for row, place in ((3, 1), (0, 3)):
        assert elsewhere.levels[place, :rounds].tolist() == together.levels[row, :rounds].tolist()
