"""Rounds without drafts: when they begin and end, what the drafter reads in them, and that no text depends on them."""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Int

from jaxspec.builders import Budgeted, Chain
from jaxspec.controllers import Fixed
from jaxspec.controllers.plain_rounds import EXPONENT, LARGEST_LOSS, PATIENCE, TRIAL, PlainRounds, PlainState
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.drafter import Drafts, run_if
from jaxspec.methods.method import Method, parse_method
from tests.controllers.rounds import MODELS, keys_of, round_of, signals
from tests.lossless.harness import models, requests, run, speculation

COSTS = Budgeted(cost=0.2, verify=((1, 1.0), (4, 1.3), (16, 2.0)))  # a round of three levels costs 1.9
CONTROLLER = PlainRounds(Fixed(), COSTS)
DEPTH = 3


def begun(state: PlainState, unfinished: list[bool]) -> list[bool]:
    """Which rows draft."""
    return CONTROLLER.begin(MODELS, keys_of(len(unfinished)), state, jnp.array(unfinished), Chain(DEPTH))[1].tolist()


def lives(acceptance: np.ndarray, rows: int) -> tuple[np.ndarray, float]:
    """Whether each round drafts, where round i accepts drafts at rate `acceptance[i]`; and tokens by plain rounds'."""
    unfinished = jnp.ones(rows, bool)

    def one_round(state: PlainState, seen: tuple[Array, Array]) -> tuple[PlainState, tuple[Array, Array, Array]]:
        rate, key = seen
        state, drafts = CONTROLLER.begin(MODELS, jax.random.split(key, rows), state, unfinished, Chain(DEPTH))
        right = jax.random.uniform(key, (rows, DEPTH)) < rate
        levels = jnp.where(drafts, DEPTH, 0)
        accepted = jnp.minimum(jnp.cumprod(right, axis=1).sum(axis=1), levels)
        after = CONTROLLER.update(state, round_of(accepted, levels))
        return after, (drafts.any(), accepted.mean() + 1.0, jnp.where(drafts.any(), 1.9, 1.0))

    keys = jax.random.split(jax.random.key(1), len(acceptance))
    seen = (jnp.asarray(acceptance, jnp.float32), keys)
    _, (drafts, tokens, costs) = jax.lax.scan(one_round, CONTROLLER.init(rows), seen)
    return np.asarray(drafts), float(tokens.sum() / costs.sum())


@pytest.mark.parametrize("rows", [1, 32])
def test_it_drafts_while_that_pays_and_finds_out_when_it_pays_again(rows: int):
    """At rate 0.9 a round has 3.4 tokens for 1.9, at 0.2 only 1.2."""
    often = lambda drafts: drafts.mean()
    assert often(lives(np.full(400, 0.9), rows)[0]) > 0.97
    drafts, speed = lives(np.full(1000, 0.2), rows)
    assert 0 < often(drafts[100:]) < 0.05 and speed > 0.97
    drafts, speed = lives(np.repeat([0.2, 0.9, 0.2, 0.9], 300), rows)
    late = drafts.reshape(4, 300)[:, 150:]
    assert [often(part) > 0.5 for part in late] == [False, True, False, True] and speed > 1.2


@pytest.mark.parametrize(
    ("cost", "verify", "levels"),
    [
        (0.0, ((1, 1.0), (2, 2.5), (6, 2.8), (16, 3.2)), 5),  # a block of 5 drafts costs 1.12 of one draft
        (0.2, ((1, 1.0), (2, 2.5), (6, 2.8), (16, 3.2)), 2),
        (0.2, ((1, 1.0), (4, 1.1), (5, 1.1)), 3),
    ],
)
def test_rounds_on_trial_draft_what_costs_little_more_than_one_level(cost: float, verify: tuple, levels: int):
    assert PlainRounds(Fixed(), Budgeted(cost=cost, verify=verify)).trial_levels == levels


def test_the_balance_is_that_of_all_unfinished_rows():
    state = dataclasses.replace(CONTROLLER.init(4), balance=jnp.array([-1.0, -2.0, 0.0, -9.0]))
    counts = dataclasses.replace(round_of([0, 2, 1, 0], [3, 3, 0, 0]), committed=jnp.array([1, 3, 2, 0]))
    after = CONTROLLER.update(state, counts)
    # Tokens of a row that drafted nothing, as one that copied, do not count: 1, 3 and 1 are five thirds.
    balance = max(-1.0 + 5 / 3 - 1.9, -PATIENCE * 3**EXPONENT - LARGEST_LOSS)
    np.testing.assert_allclose(after.balance, [balance] * 3 + [-9.0], rtol=1e-6)
    idle = dataclasses.replace(round_of([0] * 4, [0] * 4), committed=jnp.array([1, 1, 1, 0]))
    later = CONTROLLER.update(after, idle)
    np.testing.assert_allclose(later.balance, [balance + TRIAL] * 3 + [-9.0], rtol=1e-6)
    assert begun(after, [True, True, True, False]) == [True] * 4, "the rows drafted too little to end it"
    worse = dataclasses.replace(after, balance=after.balance - 3.0)
    assert begun(worse, [True, True, True, False]) == [False] * 4
    assert begun(worse, [False] * 3 + [True]) == [False] * 4 and begun(CONTROLLER.init(4), [True] * 4) == [True] * 4


def test_rounds_on_trial_have_few_levels():
    state = dataclasses.replace(CONTROLLER.init(2), on_trial=jnp.array([True, False]))
    at = lambda level: CONTROLLER.keep_drafting(
        MODELS, keys_of(2), state, signals([0.5] * 2, [0.5] * 2, level)
    ).tolist()
    assert [at(2), at(3)] == [[True, True], [False, True]]  # a chain of three fits into four nodes
    low = CONTROLLER.update(dataclasses.replace(state, balance=jnp.full(2, -PATIENCE)), round_of([0, 0], [3, 3]))
    high = CONTROLLER.update(state, round_of([3, 3], [3, 3]))
    assert low.on_trial.all() and not high.on_trial.any()


def test_only_a_round_on_trial_ends_drafting():
    rows, loss = [True] * 16, round_of([0] * 16, [DEPTH] * 16)  # of 0.9, in a range of 0.76
    once = CONTROLLER.update(CONTROLLER.init(16), loss)
    assert once.on_trial.all() and begun(once, rows) == rows
    assert begun(CONTROLLER.update(once, loss), rows) == [False] * 16


@final
@dataclasses.dataclass(frozen=True)
class EveryThird(Controller):
    """Drafts in every third round; the state is the number of rounds."""

    name: ClassVar[str] = "every-third"
    plain: bool = True

    @property
    def goes_plain(self) -> bool:
        return self.plain

    def init(self, batch: int) -> Int[Array, " B"]:
        return jnp.zeros(batch, jnp.int32)

    def begin(self, models, keys, state, unfinished, builder):
        return state + 1, state % 3 == 2

    def keep_drafting(self, models, keys, state, signals):
        return jnp.ones(signals.top_prob.shape, bool)


@pytest.mark.parametrize(
    "name", ["dflash+chain,length=4", pytest.param("eagle+chain,length=4", marks=pytest.mark.soak)]
)
def test_a_drafter_reads_in_plain_rounds_what_it_reads_in_others(name: str):
    """Its passes are skipped, and it reads one token of each row at once; so it drafts the same as without."""
    target, method = models(vocab_size=23), parse_method(name)
    asked = requests([[3, 1, 4, 1, 5], [9, 2, 6]], 30)

    def of(plain: bool):
        spec = speculation(Method(method.drafter, method.builder, EveryThird(plain)), True)
        assert (1 in spec.verify_sizes) == plain
        return run(spec, target, asked)

    (texts, history), (others, usual) = of(True), of(False)
    assert texts == others
    assert history.accepted.tolist() == usual.accepted.tolist() and history.accepted.max() > 0
    assert (history.levels[:, 2] > 0).all() and (history.levels[:, :2] == 0).all()


def test_where_drafting_never_pays_few_rounds_draft_and_the_text_is_plain_decodings():
    target, prompts = models(vocab_size=23), requests([[3, 1, 4, 1, 5], [9, 2, 6]], 30)
    method = parse_method("ngram+budgeted,width=1,depth=2,cost=3,verify=1:1/16:9")
    texts, history = run(speculation(method, True), target, prompts)
    assert texts == run(speculation(parse_method("plain"), True), target, prompts)[0]
    assert 0 < (history.levels > 0).any(axis=0).sum() <= 3


def test_a_cache_bypasses_the_branch_of_a_pass_that_may_be_skipped():
    def root(state):
        cache, hidden = state
        return Drafts(logits=hidden[:, None] * 2.0), (cache, hidden, hidden + 1.0)

    def either(needed, cache, hidden):
        return run_if(needed, root, (cache, hidden))

    given = jnp.ones((2, 7)), jnp.full((2, 3), 5.0)
    for needed in (True, False):
        drafts, (cache, hidden, added) = either(jnp.array(needed), *given)
        assert (cache == 1).all() and (hidden == 5).all()
        assert (drafts.logits == (10 if needed else 0)).all() and (added == (6 if needed else 0)).all()
    traced = jax.make_jaxpr(either)(jnp.array(True), *given)
    (branch,) = [each for each in traced.eqns if each.primitive.name == "cond"]
    assert {var.aval.shape for var in branch.outvars} == {(2, 1, 3), (2, 3)}, "the cache goes through the branch"
