"""Simulated decoding: the acceptance comes out that was put in, whatever the weights."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.builders import Budgeted
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.rule import Draws, Verdict
from jaxspec.decoding.sampling import Sampling
from jaxspec.decoding.strategy import CostTable
from jaxspec.decoding.tree import DraftTree
from jaxspec.drafters.dflash import DflashHead
from jaxspec.engine.statistics import statistics_of
from jaxspec.evaluate import simulate
from jaxspec.evaluate.simulate import Replayed
from jaxspec.methods.method import parse_method
from jaxspec.model import backend
from tests.evaluate import tiny

SHAPE = dataclasses.replace(tiny.MODEL, num_layers=2, max_length=1024)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    config = CheckpointConfig("llama", SHAPE, "float32", "float32", "jaxspec", eos=(3,))
    return simulate.random_checkpoint(tmp_path_factory.mktemp("shape"), config)


def tree_of(parent: list[int], depth: list[int], rows: int) -> DraftTree:
    """A tree of these nodes, the same in every row, and behind them a slot that is empty."""
    size = len(parent) + 1
    each = lambda values: jnp.asarray(np.broadcast_to(np.asarray(values), (rows, *np.shape(values))))
    above = np.eye(size, dtype=bool)
    for node, other in enumerate(parent):
        if other >= 0:
            above[node] |= above[other]
    return DraftTree(
        token=each(np.arange(size, dtype=np.int32)),
        parent=each(np.array([*parent, -1], np.int32)),
        depth=each(np.array([*depth, 0], np.int32)),
        log_confidence=each(np.array([*np.zeros(size - 1), -np.inf], np.float32)),
        live=each([True] * (size - 1) + [False]),
        ancestors=each(above),
        draft_probs=None,
    )


def forked(rows: int) -> DraftTree:
    """Root 0 with children 1 and 2; 3 under 2 and 4 under 3."""
    return tree_of([-1, 0, 0, 2, 3], [0, 1, 1, 2, 3], rows)


@partial(jax.jit, static_argnums=0)
def verify(rule: Replayed, keys, tree: DraftTree, logits) -> Verdict:
    greedy = Sampling(temperature=jnp.zeros(len(keys)), top_k=None, top_p=None)
    draws = Draws(sampling=greedy, keys=keys, noise=jnp.zeros((len(keys), 6, 11)))
    return rule.verify(draws, tree, logits, 5)


def test_a_chain_has_the_acceptance_that_was_asked_for():
    """By position; the last chance goes on beyond the list."""
    rows, chances = 20_000, (0.9, 0.5)
    chain = tree_of([-1, 0, 1, 2], [0, 1, 2, 3], rows)
    logits = jax.random.normal(jax.random.key(1), (rows, 5, 11))
    verdict = verify(Replayed(chances), jax.random.split(jax.random.key(0), rows), chain, logits)
    accepted = np.asarray(verdict.accepted)
    reached = [(accepted >= i).sum() for i in range(5)]
    assert reached[0] == rows and reached[4] == 0  # it is three levels deep, and has room for five
    for i, chance in enumerate((0.9, 0.5, 0.5)):
        assert reached[i + 1] / reached[i] == pytest.approx(chance, abs=0.02)
    expected = np.minimum(np.arange(6), accepted[:, None])
    np.testing.assert_array_equal(verdict.path, expected)
    says = np.asarray(logits).argmax(-1)[np.arange(rows), expected[:, -1]]
    np.testing.assert_array_equal(verdict.next_token, says)  # so that no logit goes uncomputed


def test_a_tree_accepts_each_of_its_paths_as_often_as_the_ranks_on_it():
    rows, first, later = 20_000, 0.6, 0.5
    keys, logits = jax.random.split(jax.random.key(0), rows), jnp.zeros((rows, 6, 11))
    verdict = verify(Replayed((first, later)), keys, forked(rows), logits)
    ends = np.asarray(verdict.path)[:, -1]
    second = (1 - first) * first / 2
    expected = {0: (1 - first) * (1 - first / 2), 1: first, 2: second * (1 - later), 3: second * later * (1 - later)}
    for node, chance in {**expected, 4: second * later * later}.items():
        assert (ends == node).mean() == pytest.approx(chance, abs=0.012), node
    steps = {0: [0] * 6, 1: [0, 1, 1, 1, 1, 1], 2: [0] + [2] * 5, 3: [0, 2] + [3] * 4, 4: [0, 2, 3] + [4] * 3}
    np.testing.assert_array_equal(verdict.path, [steps[end] for end in ends.tolist()])


def test_a_row_draws_for_itself():
    keys, logits = jax.random.split(jax.random.key(0), 8), jnp.zeros((8, 6, 11))
    whole = verify(Replayed((0.5,)), keys, forked(8), logits)
    alone = verify(Replayed((0.5,)), keys[3:4], forked(1), logits[:1])
    assert len(set(np.asarray(whole.accepted).tolist())) > 1
    assert whole.accepted[3] == alone.accepted[0]


def test_decoding_replays_it(model: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "CPU_TREE_SIZES", ())
    simulated = simulate.engine(model, parse_method("eagle+chain,length=2"), (0.8, 0.6))
    found = simulated.generate([[1, 2, 3]] * 4, max_new_tokens=200)
    assert all(len(one.tokens) == 200 and one.finish_reason == "length" for one in found)  # random text never ends
    counts = statistics_of([one.history for one in found])
    assert counts.acceptance_by_position == pytest.approx((0.8, 0.6), abs=0.1)


def test_a_length_is_learnt_from_what_is_replayed(model: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    """Where two drafts are always accepted and no third is, mostly two are made in the end."""
    monkeypatch.setattr(backend, "CPU_TREE_SIZES", ())
    method = parse_method("eagle+chain,length=4+length-ts,cost=0.3,verify=1:1.0/8:1.2")
    (found,) = simulate.engine(model, method, (1.0, 1.0, 0.0)).generate([[1, 2, 3]], max_new_tokens=200)
    assert 1.6 <= found.history.levels[-30:-1].mean() <= 2.5


@pytest.mark.parametrize(
    "method", ["early-exit", "edd", "medusa", "draft-model", "layer-skip", "eagle", "eagle3", "dflash"]
)
def test_every_trained_drafter_gets_weights_of_the_shape(method: str, model: Checkpoint):
    head = simulate.random_head(parse_method(method).drafter, SHAPE, jnp.bfloat16)
    arrays = jax.tree.leaves(head)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in arrays)
    assert bool(arrays) == (method != "layer-skip")


@pytest.mark.parametrize(
    ("method", "nodes"),
    [
        pytest.param("dflash,block=4+eagle2,total=7,depth=3,width=3", 6, marks=pytest.mark.soak),
        ("dflash,block=4", 3),
    ],
)
def test_trees_from_the_marginals_of_a_block(
    method: str, nodes: int, model: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    """In one pass a round; they accept as often as their nodes' ranks are the target's, and bench's counts say so."""
    monkeypatch.setattr(backend, "CPU_TREE_SIZES", ())
    passes = []
    block = DflashHead.__call__
    monkeypatch.setattr(DflashHead, "__call__", lambda *given: passes.append(1) or block(*given))
    given = (0.7, 0.6, 0.5)
    simulated = simulate.engine(model, parse_method(method), given)
    found = simulated.generate([[1, 2, 3]] * 4, max_new_tokens=200, record=True)
    assert len(passes) == 1  # in the loop as it was traced: none while levels are added
    rounds = [one for generation in found for one in generation.rounds or ()]
    whole = [one for one in rounds if len(one.token) == max(len(each.token) for each in rounds)]
    assert len(whole[0].token) == nodes + 1
    expected = 1 + sum(math.prod(each) for each in chances_on_paths(whole[0].parent.tolist(), given) if each)
    assert len(whole) > len(rounds) / 2 and statistics_of([one.history for one in found]).tau == pytest.approx(
        expected, rel=0.12
    )
    confidence = [sum(map(math.log, each)) for each in chances_on_paths(whole[0].parent.tolist(), given)]
    np.testing.assert_allclose(whole[0].log_confidence, confidence, rtol=1e-4, atol=1e-5)


def chances_on_paths(parent: list[int], given: Sequence[float]) -> list[list[float]]:
    """Of each node, the chances of the ranks on the path to it: a, then half of it each time; of the root none."""
    paths: list[list[float]] = []
    for node, above in enumerate(parent):
        if above < 0:
            paths.append([])
            continue
        chance = given[len(paths[above])]
        rank = parent[:node].count(above)
        other = (1 - chance) * chance / 2 * (1 - chance / 2) ** (rank - 1)
        paths.append([*paths[above], other if rank else chance])
    return paths


def test_costs_that_a_tree_needs_are_measured(model: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    table = CostTable(plain=1.0, verify=((1, 1.0), (8, 1.5)), level=((1, 0.1),))
    monkeypatch.setattr(simulate, "measure", lambda model, method, head, batch: table)
    found = simulate.engine(model, parse_method("eagle+budgeted"), (0.5,), batch_size=2).method.builder
    assert isinstance(found, Budgeted) and (found.cost, found.verify) == (0.1, table.verify)
    assert found.power == found.at_temperature_0.power == 1  # the confidences are the chances


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("eagle+chain+threshold", "threshold needs the drafter's confidence, .* fixed, beta-ts, length-ts can"),
        ("ngram", "ngram drafts from the text, which is random in a simulation"),
        ("dflash,history=3", "history drafts from the text, which is random in a simulation"),
    ],
)
def test_what_random_weights_cannot_show_is_refused(method: str, says: str, model: Checkpoint):
    with pytest.raises(ValueError, match=says):
        simulate.engine(model, parse_method(method), (0.5,))


def test_the_option():
    assert simulate.parse("acceptance=0.75,0.69") == (0.75, 0.69)
    for text in ("0.75", "acceptance=", "acceptance=1.2", "acceptance=x", "speed=0.5"):
        with pytest.raises(ValueError, match=r"such as acceptance=0\.75,0\.69"):
            simulate.parse(text)


def test_bytes_stand_in_for_a_tokenizer(model: Checkpoint):
    assert model.tokenizer.encode("abc") == [97, 98, 99]
    assert len(model.tokenizer.decode([1, 2, 3])) == 3
