"""Simulated decoding: the acceptance comes out that was put in, whatever the weights."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding import speculation
from jaxspec.decoding.rule import Draws, Verdict
from jaxspec.decoding.sampling import Sampling
from jaxspec.decoding.tree import DraftTree
from jaxspec.engine.statistics import statistics_of
from jaxspec.evaluate import simulate
from jaxspec.evaluate.simulate import Replayed
from jaxspec.methods.method import parse_method
from tests.evaluate import tiny

SHAPE = dataclasses.replace(tiny.MODEL, num_layers=2, max_length=1024)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    config = CheckpointConfig("llama", SHAPE, "float32", "float32", "jaxspec", eos=(3,))
    return simulate.random_checkpoint(tmp_path_factory.mktemp("shape"), config)


def forked(rows: int) -> DraftTree:
    """Root 0 with children 1 and 2; 3 under 2 and 4 under 3: the deepest path is 0, 2, 3, 4. Slot 5 is empty."""
    each = lambda values: jnp.asarray(np.broadcast_to(np.asarray(values), (rows, *np.shape(values))))
    above = np.eye(6, dtype=bool)
    for node, path in ((1, [0]), (2, [0]), (3, [0, 2]), (4, [0, 2, 3])):
        above[node, path] = True
    return DraftTree(
        token=each(np.arange(6, dtype=np.int32)),
        parent=each(np.array([-1, 0, 0, 2, 3, -1], np.int32)),
        depth=each(np.array([0, 1, 1, 2, 3, 0], np.int32)),
        log_confidence=each(np.array([0, -1, -2, -3, -4, -np.inf], np.float32)),
        live=each([True] * 5 + [False]),
        ancestors=each(above),
        draft_probs=None,
    )


@partial(jax.jit, static_argnums=0)
def verify(rule: Replayed, keys, tree: DraftTree, logits) -> Verdict:
    greedy = Sampling(temperature=jnp.zeros(len(keys)), top_k=None, top_p=None)
    draws = Draws(sampling=greedy, keys=keys, noise=jnp.zeros((len(keys), 6, 11)))
    return rule.verify(draws, tree, logits, 5)


def test_acceptance_by_position_is_what_was_asked_for():
    """On a tree too, where it is that of the deepest path; the last chance goes on beyond the list."""
    rows, chances = 20_000, (0.9, 0.5)
    logits = jax.random.normal(jax.random.key(1), (rows, 6, 11))
    verdict = verify(Replayed(chances), jax.random.split(jax.random.key(0), rows), forked(rows), logits)
    accepted = np.asarray(verdict.accepted)
    reached = [(accepted >= i).sum() for i in range(5)]
    assert reached[0] == rows and reached[4] == 0  # it is three levels deep, and has room for five
    for i, chance in enumerate((0.9, 0.5, 0.5)):
        assert reached[i + 1] / reached[i] == pytest.approx(chance, abs=0.02)
    steps = np.array([0, 2, 3, 4])
    expected = steps[np.minimum(np.arange(6), accepted[:, None])]
    np.testing.assert_array_equal(verdict.path, expected)
    says = np.asarray(logits).argmax(-1)[np.arange(rows), expected[:, -1]]
    np.testing.assert_array_equal(verdict.next_token, says)  # so that no logit goes uncomputed


def test_a_row_draws_for_itself():
    keys, logits = jax.random.split(jax.random.key(0), 8), jnp.zeros((8, 6, 11))
    whole = verify(Replayed((0.5,)), keys, forked(8), logits)
    alone = verify(Replayed((0.5,)), keys[3:4], forked(1), logits[:1])
    assert len(set(np.asarray(whole.accepted).tolist())) > 1
    assert whole.accepted[3] == alone.accepted[0]


def test_decoding_replays_it(model: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speculation, "CPU_SIZES", ())
    simulated = simulate.engine(model, parse_method("eagle+chain,length=2"), (0.8, 0.6))
    found = simulated.generate([[1, 2, 3]] * 4, max_new_tokens=200)
    assert all(len(one.tokens) == 200 and one.finish_reason == "length" for one in found)  # random text never ends
    counts = statistics_of([one.history for one in found])
    assert counts.acceptance_by_position == pytest.approx((0.8, 0.6), abs=0.1)


@pytest.mark.parametrize(("chance", "few", "most"), [(0.0, 0.0, 0.5), (1.0, 3.5, 4.0)])
def test_a_length_is_learnt_from_what_is_replayed(
    chance: float, few: float, most: float, model: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    """Where no draft is accepted hardly any is made in the end, and where all are, as many as there can be."""
    monkeypatch.setattr(speculation, "CPU_SIZES", ())
    method = parse_method("eagle+chain,length=4+length-ts,cost=0.3,verify=1:1.0/8:1.2")
    (found,) = simulate.engine(model, method, (chance,)).generate([[1, 2, 3]], max_new_tokens=200)
    assert few <= found.history.levels[-30:-1].mean() <= most


@pytest.mark.parametrize(
    "method", ["early-exit", "edd", "medusa", "draft-model", "layer-skip", "eagle", "eagle3", "dflash"]
)
def test_every_trained_drafter_gets_weights_of_the_shape(method: str, model: Checkpoint):
    head = simulate.random_head(parse_method(method).drafter, SHAPE, jnp.bfloat16)
    arrays = jax.tree.leaves(head)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in arrays)
    assert bool(arrays) == (method != "layer-skip")


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("eagle+eagle2", "eagle2 needs the drafter's confidence, .* chain, static"),
        ("eagle+chain+threshold", "threshold needs the drafter's confidence"),
        ("ngram", "ngram drafts from the text, which is random in a simulation"),
        ("eagle,history=3+chain", "history drafts from the text, which is random in a simulation"),
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
    assert model.tokenizer("abc") == {"input_ids": [97, 98, 99]}
    assert len(model.tokenizer.decode([1, 2, 3])) == 3
