"""History beside a head of every kind: the text is the target's, whichever rows copy and whichever use the head."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.decoding import loop
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import Speculation
from jaxspec.methods.method import parse_method
from tests.controllers.test_plain_rounds import EveryThird
from tests.lossless.combinations import some
from tests.lossless.distribution import FALSE_ALARM, p_value
from tests.lossless.harness import (
    begun,
    models,
    requests,
    rounds_of,
    run,
    run_refilled,
    speculation,
    texts_of,
    weights,
    with_draft_vocabulary,
)

NEW, VOCAB = 24, 23
STATIC = "static,paths=0:1:2:00:01:10:000"
METHODS = (  # each kind of head, and each kind of builder and controller
    f"draft-model,history=2+{STATIC}",
    "eagle,history=2+chain,length=4",
    "eagle3,history=3+eagle2,total=8,depth=3,width=2",
    "early-exit,history=2+chain,length=4+threshold,gamma=0.2,confidence=token",
    f"early-exit,history=2+{STATIC}",
    "edd,history=1+pruned,width=2,depth=3,leaf=0.02,cost=0.1,total=8",
    "medusa,history=2+budgeted,width=2,depth=3,cost=0.1,verify=1:1/2:1.2/4:1.4/8:1.6,total=8",
    "layer-skip,history=2+chain,length=4+beta-ts,prior_alpha=1",
    "dflash,history=2+eagle2,total=8,depth=3,width=2",
    "dflash,block=3,history=2+chain,length=6+beta-ts,prior_alpha=1",  # longer than the block: copies only
)
COUPLED = [name for name in METHODS if "chain" not in name or "dflash" in name]
SAMPLED = (
    "eagle3,history=1+chain,length=3",
    "edd,history=3+chain,length=3+threshold,gamma=0.2,confidence=token",
    *(
        pytest.param(f"{name},history=2+chain,length=3", marks=pytest.mark.soak)
        for name in ("draft-model", "eagle", "early-exit", "layer-skip", "medusa")
    ),
)
REPEATING = [5, 6, 7] * 6


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [REPEATING, *(rng.integers(0, VOCAB, size=n).tolist() for n in (1, 8)), [*range(12), *range(12)]]


@pytest.fixture(scope="module")
def plain(target, prompts) -> list[list[int]]:
    return run(speculation(parse_method("plain"), True), target, requests(prompts, NEW))[0]


def copies(spec: Speculation, models: Models, asked: list[Request]) -> tuple[DecodeState, np.ndarray]:
    """The last state, and whether each unfinished row copied, [rounds, B]; -1 where the row was done."""
    chosen = weights(spec, models)
    state, seen = begun(spec, chosen, asked, (), 128), []
    while not bool(state.done.all()):
        done = np.asarray(state.done)
        state = loop.decode(spec, chosen, state, jnp.int32(1), jnp.int32(len(done)))
        seen.append(np.where(done, -1, np.asarray(state.drafter.copied)))
    return state, np.stack(seen)


@pytest.mark.parametrize("name", some(METHODS, *METHODS[1::2]))
def test_greedy_text_is_the_targets(name: str, target, prompts, plain):
    """Also beside other rows, and in rows that others had before; and what a row does depends on itself alone, unless
    rows decide together."""
    spec, asked = speculation(parse_method(name), True), requests(prompts, NEW)
    state, seen = copies(spec, target, asked)
    assert texts_of(state, asked) == plain
    mixed = ((seen == 1).any(axis=1) & (seen == 0).any(axis=1)).sum()
    assert mixed and (seen[:, 0] == 0).any(), "no round had rows of both kinds, so nothing was tested"
    counts = rounds_of(state, len(asked))
    assert counts.accepted.sum() > 0
    others = [asked[3], asked[0], asked[1], dataclasses.replace(asked[2], tokens=REPEATING[1:])]
    moved, beside = copies(spec, target, others)
    assert texts_of(moved, others)[0] == plain[3] and texts_of(moved, others)[2] == plain[1]
    again = rounds_of(moved, len(others))
    for now, before in ((0, 3), (2, 1)) if not spec.controller.goes_plain else ():
        of = lambda which, row: which[:, row][which[:, row] >= 0].tolist()
        assert of(beside, now) == of(seen, before)
        rounds = len(of(seen, before))
        assert (again.levels[now, :rounds] == counts.levels[before, :rounds]).all()
    each = [(0, NEW), (1, 7), (2, 1), (3, 12), (1, NEW), (0, 12), (3, 5), (2, 9)]
    refilled = [request for i, budget in each for request in requests([prompts[i]], budget)]
    assert run_refilled(spec, target, refilled) == [plain[i][:budget] for i, budget in each]


def test_copies_may_be_longer_than_the_heads_block(target, prompts):
    asked = requests(prompts, NEW)
    _, alone = run(speculation(parse_method("dflash,block=3+chain,length=6"), True), target, asked)
    assert alone.levels.max() == 2
    beside = speculation(parse_method("dflash,block=3,history=2+chain,length=6"), True)
    state, seen = copies(beside, target, asked)
    counts = rounds_of(state, len(asked))
    assert counts.levels.T[seen == 1].max() == 6 and counts.accepted.T[seen == 1].max() > 2


@pytest.mark.parametrize("name", some(COUPLED, *COUPLED[1::3]))
def test_coupled_text_is_plain_decodings(name: str, target, prompts):
    asked = requests(prompts, NEW, seed=3, temperature=0.3, top_p=0.95)
    expected, _ = run(speculation(parse_method("plain"), False), target, asked)
    state, seen = copies(speculation(parse_method(name), False), target, asked)
    assert texts_of(state, asked) == expected
    assert (seen == 1).any() and (seen == 0).any()


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.soak), 0.3])
def test_beside_a_head_that_was_cut_to_a_draft_vocabulary(temperature: float, target, prompts):
    """A copied token may be one that the head cannot draft; texts are plain decoding's, sampled ones too."""
    asked, greedy = requests(prompts, NEW, seed=3, temperature=temperature), temperature == 0
    expected, _ = run(speculation(parse_method("plain"), greedy), target, asked)
    spec = speculation(parse_method("eagle,history=3+eagle2,total=8,depth=3,width=2"), greedy)
    state, seen = copies(spec, with_draft_vocabulary(target, range(0, VOCAB, 2)), asked)
    assert texts_of(state, asked) == expected
    assert (seen == 1).any() and (seen == 0).any()
    accepted, copied = rounds_of(state, len(asked)).accepted, seen.T == 1
    assert accepted[copied].sum() > 0 and accepted[~copied].sum() > 0


@pytest.mark.parametrize("name", SAMPLED)
def test_joint_distribution_is_the_targets(name: str):
    """The prompt's last tokens match for some first tokens and not for others."""
    tiny = models(5, num_layers=2 if name.startswith("early-exit") else 1)
    assert p_value(speculation(parse_method(name), False), tiny) > FALSE_ALARM


def test_a_seed_gives_the_same_text_in_any_batch(target, prompts):
    spec = speculation(parse_method("medusa,history=2+chain,length=4"), False)
    asked = requests(prompts, NEW, seed=7, temperature=0.7)
    together, seen = copies(spec, target, asked)
    assert (seen == 1).any() and (seen == 0).any()
    others = [dataclasses.replace(asked[0], tokens=[3, 1, 4], index=9), asked[2], asked[1], asked[3]]
    apart, _ = copies(spec, target, others)
    expected = texts_of(together, asked)
    assert texts_of(apart, others)[1:] == [expected[2], expected[1], expected[3]]


@pytest.fixture(scope="module")
def repeating(target):
    """A state in which every row repeats itself, and the method that it is of; its controller stops after a level."""
    spec = speculation(parse_method("eagle,history=4+chain,length=4+threshold,gamma=1,confidence=token"), True)
    chosen = weights(spec, target)
    return spec, chosen, begun(spec, chosen, requests([REPEATING, [1, 2] * 6], NEW), (), 128)


def with_text(state: DecodeState, rows: list[list[int]]) -> DecodeState:
    """The state with another text of each row; keys and values are still of the old one."""
    padded = np.zeros(state.tokens.shape, np.int32)
    for row, text in enumerate(rows):
        padded[row, : len(text)] = text
    return dataclasses.replace(state, tokens=jnp.asarray(padded), length=jnp.array([len(text) for text in rows]))


def test_where_all_rows_copy_the_head_takes_no_pass(repeating):
    spec, chosen, state = repeating
    draft = jax.jit(lambda state: loop.draft(spec, chosen, state, state.keys))
    tree, after = draft(with_text(state, [[5, 6, 7] * 4, [1, 2] * 5]))
    assert tree.token[:, 1:].tolist() == [[5, 6, 7, 5], [1, 2, 1, 2]]
    assert tree.live.all(), "a controller ended a copy"
    assert after.drafter.skipped.all() and (after.drafter.head.features == 0).all()
    tree, after = draft(with_text(state, [[5, 6, 7] * 4, [1, 2, 9, 4, 8]]))
    assert after.drafter.copied.tolist() == [True, False]
    assert (after.drafter.head.features != 0).any(), "the first pass was left out"
    assert tree.live.sum(axis=1).tolist() == [5, 2], "the controller stops the head's drafts after a level"
    assert after.drafter.skipped.all()
    assert not any(leaf.any() for leaf in jax.tree.leaves(after.drafter.head.nodes)), "a stopped row takes no pass"
    assert tree.token[0, 1:].tolist() == [5, 6, 7, 5], "a row copies whatever its neighbours do"
    finished = dataclasses.replace(with_text(state, [[5, 6, 7] * 4, [1, 2, 9]]), done=jnp.array([False, True]))
    assert draft(finished)[1].drafter.skipped.all(), "a finished row takes a pass of the head"


def test_a_match_of_just_as_many_tokens_is_copied(repeating):
    """Four tokens match in row 0, three in row 1."""
    spec, chosen, state = repeating
    texts = [[1, 2, 3, 4, 9, 8, 1, 2, 3, 4], [1, 2, 3, 4, 9, 8, 7, 2, 3, 4]]
    tree, after = loop.draft(spec, chosen, with_text(state, texts), state.keys)
    assert after.drafter.copied.tolist() == [True, False]
    assert tree.token[0, 1:].tolist() == [9, 8, 1, 2]


def test_a_row_copies_where_that_is_worth_as_much_as_the_head(repeating):
    """By hand: after 12 equal tokens, shares of 12/14, 13/15, 14/16 and 15/17 give 2.82 tokens. The head's average
    counts four rounds more."""
    spec, chosen, state = repeating
    state = with_text(state, [[5, 6, 7] * 5, [1, 2] * 7])
    for accepted, asked, copied in (([39, 40], [10, 10], [True, False]), ([0, 80], [0, 20], [True, False])):
        drafter = dataclasses.replace(
            state.drafter, head_rounds=jnp.array(asked, float), accepted=jnp.array(accepted, float)
        )
        _, after = loop.draft(spec, chosen, dataclasses.replace(state, drafter=drafter), state.keys)
        assert after.drafter.copied.tolist() == copied


def test_a_round_counts_for_the_head_or_for_the_match(target):
    spec = speculation(parse_method("eagle,history=4+chain,length=4"), True)
    chosen = weights(spec, target)
    state = begun(spec, chosen, requests([REPEATING, [3, 1]], NEW), (), 128)
    after = loop.decode(spec, chosen, with_text(state, [[5, 6, 7] * 4, [1, 2, 9]]), jnp.int32(1))
    drafter, accepted = after.drafter, rounds_of(after, 2).accepted[:, 0]
    assert drafter.copied.tolist() == [True, False]
    assert drafter.head_rounds.tolist() == [0, 1] and drafter.accepted.tolist() == [0, accepted[1]]
    assert not drafter.drafted.any()
    assert drafter.matches.compared[0].sum() == accepted[0] + 1 and drafter.matches.followed[0].sum() >= accepted[0]
    assert not drafter.matches.compared[1].any()
    finished = dataclasses.replace(after, done=jnp.array([False, True]))
    assert loop.decode(spec, chosen, finished, jnp.int32(1)).drafter.head_rounds[1] == 1
    plain = dataclasses.replace(spec, controller=EveryThird())
    state = begun(plain, chosen, requests([[3, 1, 4], [2, 7]], NEW), (), 128)
    later = loop.decode(plain, chosen, state, jnp.int32(6))
    assert later.drafter.head_rounds.tolist() == [2, 2], "a round without drafts counts for the head"


def test_the_heads_average_is_of_all_its_rounds(target):
    """No row copies: no match has 16 tokens."""
    spec = speculation(parse_method("draft-model,history=16+chain,length=4"), True)
    state = begun(spec, weights(spec, target), requests([[3, 1, 4], [2, 7]], NEW), (), 128)
    after = loop.decode(spec, weights(spec, target), state, jnp.int32(5))
    counts = rounds_of(after, 2)
    assert not after.drafter.copied.any() and counts.accepted.sum() > 0
    assert after.drafter.head_rounds.tolist() == [5, 5]
    assert after.drafter.accepted.tolist() == counts.accepted.sum(axis=1).tolist()


def test_a_match_is_compared_with_text_that_the_head_did_not_expect(target):
    """Row 0 copies. In row 1 the match is too short for that, and 9 followed it; the head prefers another token."""
    texts = [[5, 6, 7] * 4, [1, 2, 9, 4, 1, 2]]
    found = {}
    for history in (0, 4):
        spec = speculation(parse_method(f"eagle,history={history}+chain,length=1"), True)
        chosen = weights(spec, target)
        state = begun(spec, chosen, requests([REPEATING, [3, 1]], NEW), (), 128)
        found[history] = loop.draft(spec, chosen, with_text(state, texts), state.keys)
    assert found[0][0].token[1, 1] != 9
    assert found[4][1].drafter.against.ahead.matched.tolist() == [0, 2]


@pytest.mark.parametrize("controller", ["beta-ts", "expected-gain,cost=0.5,verify=1:1/2:1.25/4:1.5/8:2"])
def test_a_copy_teaches_the_controller_nothing(controller: str, target):
    """And its levels, which take no pass of the head, cost other rows nothing; verifying them does."""
    spec = speculation(parse_method(f"eagle,history=4+chain,length=4+{controller}"), True)
    chosen = weights(spec, target)
    state = begun(spec, chosen, requests([REPEATING, [3, 1], [8]], NEW), (), 128)
    state = with_text(state, [[5, 6, 7] * 4, [1, 2, 9], [8, 2], [0]])
    own = lambda kept: kept.inner if "gain" in controller else kept  # apart from whether rounds are plain
    if "gain" in controller:  # so that the second row stops after a level, and the third begins no round
        learnt = dataclasses.replace(own(state.controller), tokens=jnp.full(4, 1.2))
        learnt = dataclasses.replace(state.controller, inner=learnt)
        state = dataclasses.replace(state, controller=learnt, done=jnp.array([False, False, True, True]))
    before = jax.tree.map(np.array, own(state.controller))
    after = loop.decode(spec, chosen, state, jnp.int32(1))
    kept = [
        all((old[row] == new[row]).all() for old, new in zip(*map(jax.tree.leaves, pair), strict=True))
        for row in range(4)
        for pair in [(posterior(before), posterior(own(after.controller)))]
    ]
    assert kept == [True, False, "gain" in controller, True]
    levels = rounds_of(after, 2).levels[:, 0].tolist()
    assert levels[0] == 4
    if "gain" in controller:
        assert levels[1] < 4, "all rows drafted the same, so nothing was tested"
        assert own(after.controller).time[1] == pytest.approx(0.98 * before.time[1] + max(levels[1], 1) * 0.5 + 2)


def posterior(controller: Any) -> Any:
    """What a controller has learnt, without its values of the current round."""
    names = {"alpha", "beta", "weights", "precision", "accepted", "rejected", "tokens", "time", "density"}
    return {name: getattr(controller, name) for name in names if hasattr(controller, name)}


@pytest.mark.parametrize("name", ["dflash,block=3,history=3+chain,length=5", "medusa,history=3+chain,length=5"])
def test_below_the_heads_last_level_a_copy_has_its_own_chance(name: str, target):
    """Row 0 copies. Row 1 does not: two tokens match, and the head's own drafts lead to the copy below them."""
    spec = speculation(parse_method(name), True)
    chosen = weights(spec, target)
    state = begun(spec, chosen, requests([REPEATING, [3, 1]], NEW), (), 128)
    counts = jnp.zeros((2, 16), jnp.int32)
    for field, followed in (("matches", 6), ("against", 2)):
        learnt = dataclasses.replace(getattr(state.drafter, field), compared=counts + 8, followed=counts + followed)
        state = dataclasses.replace(state, drafter=dataclasses.replace(state.drafter, **{field: learnt}))
    last, far = [4, 9], [11, 12, 13, 14]
    texts = lambda drafted: [[5, 6, 7] * 4, [*last, *drafted, *far, 0, *last][: len(last) * 2 + len(far) + 4]]
    draft = jax.jit(lambda state: loop.draft(spec, chosen, state, state.keys))
    drafted = [15, 16, 17]
    reach = 2 if "dflash" in name else 3
    for _ in range(reach):  # the text comes to contain what the head drafts after its end
        tree, after = draft(with_text(state, texts(drafted)))
        drafted = [*tree.token[1, 1 : reach + 1].tolist(), 17][:3]
    assert after.drafter.copied.tolist() == [True, False] and after.drafter.matches.ahead.matched.tolist() == [9, 2]
    assert tree.token[1, 1:].tolist() == after.drafter.matches.ahead.token[1, :5].tolist()
    each = np.exp(np.diff(np.asarray(tree.log_confidence), axis=1))
    chance = lambda came, share, matched: (came + 4 * share * matched / (matched + 2)) / 12
    np.testing.assert_allclose(each[0], [chance(6, 1, 9 + i) for i in range(5)], rtol=1e-4)
    np.testing.assert_allclose(each[1, reach:], [chance(2, 0.25, 2 + i) for i in range(reach, 5)], rtol=1e-4)
