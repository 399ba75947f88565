"""DFlash's training computes the logits that decoding drafts from, and its loss is the paper's."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint import heads
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding import tree as trees
from jaxspec.decoding.drafter import Committed, Models, Prefix
from jaxspec.drafters.dflash import Dflash, DflashHead
from jaxspec.model.llama import Llama
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import DflashObjective
from jaxspec.train.methods import dflash
from jaxspec.train.run.packed import positions, target_features
from tests.train.command import trained
from tests.train.windows import shape, two_windows

CONFIG = shape(3)
LENGTH, BLOCK, ANCHORS = 14, 4, 5
OBSERVE = jax.jit(lambda drafter, *arguments: drafter.observe(*arguments), static_argnums=0)
ROOT = jax.jit(lambda drafter, *arguments: drafter.root(*arguments), static_argnums=0)
FEATURES = jax.jit(target_features, static_argnums=2)
LOSS = jax.jit(dflash.loss, static_argnums=4)
DRAW = jax.jit(dflash.draw, static_argnums=2)


@pytest.fixture(scope="module")
def target() -> Llama:
    return Llama(CONFIG, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def head() -> DflashHead:
    return head_of()


@pytest.fixture(scope="module")
def corrected() -> DflashHead:
    """The same with a Markov term of random weights."""
    return head_of(markov_rank=3)


def head_of(**options: Any) -> DflashHead:
    drafter = Dflash(block=BLOCK)
    return drafter.build_head(drafter.head_for(CONFIG, 2, mask_token=4, **options), nnx.Rngs(1))


@pytest.fixture(scope="module")
def dspark() -> DflashHead:
    """One whose rows draft the next position, in causal blocks, with a confidence head."""
    return head_of(markov_rank=3, anchor=True, causal=(True, True), confidence="markov")


@pytest.fixture(scope="module")
def batch() -> Windows:
    return two_windows(8, 6, 13, 0.8)


@jax.jit
def block_outputs(head: DflashHead, target: Llama, batch: Windows) -> jax.Array:
    """The outputs of the block that begins at each token, [B, T, levels, D]."""
    _, taps = target_features(target, batch, head.options.taps)
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    every = jnp.broadcast_to(jnp.arange(LENGTH), (2, LENGTH))
    context = head.context(taps, positions(segment))
    return dflash.draft(head, target, tokens, segment, every, context)


def drafted(head: DflashHead, target: Llama, batch: Windows) -> jax.Array:
    """Their logits, [B, T, levels, V]."""
    return target.logits(block_outputs(head, target, batch))


@pytest.fixture(scope="module")
def logits(target: Llama, head: DflashHead, batch: Windows) -> np.ndarray:
    return np.asarray(drafted(head, target, batch))


@pytest.mark.parametrize("kind", ["head", "dspark"])
def test_trains_what_decodes(kind, target, batch, request):
    """A round after each of some tokens: first ones of a document and later ones."""
    head = request.getfixturevalue(kind)
    logits = np.asarray(drafted(head, target, batch))
    _, taps = FEATURES(target, batch, head.options.taps)
    models, drafter = Models(target=target, draft=head), Dflash(block=BLOCK + head.options.anchor)
    for row, begin, anchor in ((0, 0, 0), (0, 0, 5), (0, 8, 8), (0, 8, 11), (1, 0, 13)):
        whole = lambda x, row=row, begin=begin: jnp.roll(x[row : row + 1], -begin, axis=1)
        tokens, known = whole(jnp.asarray(batch.tokens)), anchor - begin
        committed = Committed(
            start=jnp.array([0]),
            count=jnp.array([known]),
            token=tokens,
            next_token=jnp.roll(tokens, -1, axis=1),
            hidden=jnp.zeros((1, LENGTH, CONFIG.hidden_size)),
            taps=tuple(map(whole, taps)),
        )
        state = drafter.init(models, 1, 32)
        if known:
            state = OBSERVE(drafter, models, state, committed)
        prefix = Prefix(token=jnp.pad(tokens, [(0, 0), (0, 18)]), length=jnp.array([known + 1]), cache=())
        _, state = ROOT(drafter, models, state, prefix, trees.init_tree(tokens[:, known], BLOCK, None))
        assert state.logits is not None
        np.testing.assert_allclose(state.logits[0], logits[row, anchor], atol=1e-4)


def log_softmax(values: np.ndarray) -> np.ndarray:
    return values - np.log(np.exp(values).sum(-1, keepdims=True))


@pytest.mark.parametrize(
    ("weighting", "options", "goal"),
    [
        ("decay", {"decay_scale": 1.5}, "cross-entropy"),
        ("d-pace", {"smoothing": 0.3}, "forward-kl"),
        ("uniform", {}, "forward-kl"),
    ],
)
def test_loss_is_the_papers(weighting, options, goal, target, head, batch, logits, monkeypatch):
    """Or the KL from the target's distribution in its place, with the same weights."""
    monkeypatch.setattr(dflash, "_ROWS", 2 * BLOCK)  # several chunks, the last of which is not full
    heat = 0.7 if goal == "forward-kl" else 1.0
    objective = DflashObjective(goal, heat, anchors=ANCHORS, weighting=weighting, **options)
    features, _ = FEATURES(target, batch, head.options.taps)
    teacher = log_softmax(np.asarray(target.logits(features), np.float64) / heat)
    found, sums = LOSS(head, target, batch, jax.random.key(5), objective)
    blocks = DRAW(batch.segment, batch.counted, ANCHORS, jax.random.key(5))
    total = weight = 0.0
    right, rows = np.zeros(BLOCK - 1), np.zeros(BLOCK - 1)
    for row, n in np.ndindex(2, ANCHORS):
        anchor = int(blocks.anchor[row, n])
        if not blocks.real[row, n]:
            continue
        weight += weighting == "d-pace"
        said = logits[row, anchor].astype(np.float64)
        log_q = log_softmax(said)
        reached, lost, chances = 1.0, {}, {}
        for j in range(1, BLOCK):
            at = min(anchor + j, LENGTH - 1)
            label = int(batch.tokens[row, at])
            reached *= 0.3 + 0.7 * np.exp(log_q[j - 1, label])
            if anchor + j < LENGTH and batch.counted[row, at] and batch.segment[row, at] == batch.segment[row, anchor]:
                log_p = teacher[row, at - 1]
                divergence = (np.exp(log_p) * (log_p - log_q[j - 1])).sum()
                lost[j] = divergence if goal == "forward-kl" else -log_q[j - 1, label]
                chances[j] = reached
                rows[j - 1] += 1
                right[j - 1] += said[j - 1].argmax() == label
        for j, value in lost.items():
            if weighting == "decay":
                share = np.exp(-(j - 1) / 1.5)
                weight += share
            elif weighting == "uniform":
                share = 1.0
                weight += share
            else:
                share = sum(chance for k, chance in chances.items() if k >= j)
            total += share * value
    assert float(found) == pytest.approx(total, rel=1e-4)
    assert float(sums["count"]) == pytest.approx(weight, rel=1e-5)
    for k in range(BLOCK - 1):
        assert (float(sums[f"alpha_{k}"]), float(sums[f"alpha_{k}/rows"])) == (right[k], rows[k])


def test_anchors_are_drawn_among_tokens_whose_next_one_counts(batch):
    may = {
        (row, i)
        for row, i in np.ndindex(2, LENGTH - 1)
        if batch.counted[row, i + 1] and batch.segment[row, i] == batch.segment[row, i + 1]
    }
    seen = set()
    for key in [None, *jax.random.split(jax.random.key(0), 20)]:
        blocks = DRAW(batch.segment, batch.counted, ANCHORS, key)
        drawn = [(row, int(blocks.anchor[row, n])) for row, n in np.ndindex(2, ANCHORS) if blocks.real[row, n]]
        assert len(drawn) == len({*drawn}) == 2 * ANCHORS and {*drawn} <= may
        seen |= {*drawn}
    assert seen == may
    few = jnp.zeros((2, LENGTH), bool).at[:, 3].set(True)
    for key in (None, jax.random.key(1)):
        blocks = DRAW(batch.segment, few, ANCHORS, key)
        assert blocks.real.sum(axis=1).tolist() == [1, 1]
        assert blocks.anchor[blocks.real].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("possible", "anchors", "expected"),
    [
        (range(13), 5, [0, 2, 5, 7, 10]),
        (range(1, 12), 5, [1, 3, 5, 7, 9]),
        ([0, 3, 4, 8, 9, 10, 11], 5, [0, 3, 4, 9, 10]),
        ([2, 7, 12], 5, [2, 7, 12]),
        (range(13), 40, list(range(13))),
    ],
)
def test_without_a_key_anchors_are_spread_evenly(possible, anchors, expected):
    """Held-out loss has the same anchors each time, over the whole window."""
    counted = jnp.zeros((2, LENGTH), bool).at[0, jnp.array([i + 1 for i in possible])].set(True)
    blocks = DRAW(jnp.zeros((2, LENGTH), jnp.int32), counted, anchors, None)
    assert blocks.anchor[0][blocks.real[0]].tolist() == expected
    assert not blocks.real[1].any()


def test_a_block_sees_nothing_after_its_anchor_but_its_own_place(target, head, batch, logits):
    """Later tokens change no block that begins before them, nor does another document."""
    other = jnp.asarray(batch.tokens).at[0, 6:8].set(0).at[1, 9:].set(1)
    found = drafted(head, target, dataclasses.replace(batch, tokens=other))
    for row, places in ((0, [*range(6), *range(8, 14)]), (1, [*range(9)])):
        np.testing.assert_allclose(found[row, np.array(places)], logits[row, places], atol=1e-5)
    assert np.abs(found[1, 10] - logits[1, 10]).max() > 1e-3


def test_given_taps_replace_the_targets_own(target, head, batch):
    """As they come from the cache on disk."""
    features, taps = FEATURES(target, batch, head.options.taps)
    lost = lambda batch: float(LOSS(head, target, batch, None, DflashObjective(anchors=ANCHORS))[0])
    given = dataclasses.replace(batch, features=features, taps=taps)
    assert lost(given) == pytest.approx(lost(batch), rel=1e-5)
    assert lost(dataclasses.replace(given, taps=tuple(2 * tap + 1 for tap in taps))) != pytest.approx(lost(batch))


def test_a_markov_term_is_trained_on_the_token_before(target, head, corrected, batch, logits):
    """The loss with it is that of marginals to which each label's own predecessor adds its correction."""
    params = module_to_dict(corrected)
    term = np.asarray(params["markov.embedding"]) @ np.asarray(params["markov.head.kernel"])
    objective = DflashObjective(anchors=ANCHORS, decay_scale=1.5)
    found, sums = LOSS(corrected, target, batch, jax.random.key(5), objective)
    blocks = DRAW(batch.segment, batch.counted, ANCHORS, jax.random.key(5))
    total, right, rows = 0.0, np.zeros(BLOCK - 1), np.zeros(BLOCK - 1)
    for row, n in np.ndindex(2, ANCHORS):
        anchor = int(blocks.anchor[row, n])
        for j in range(1, BLOCK):
            at = anchor + j
            inside = at < LENGTH and batch.segment[row, at] == batch.segment[row, anchor]
            if not (blocks.real[row, n] and inside and batch.counted[row, at]):
                continue
            said = logits[row, anchor, j - 1] + term[int(batch.tokens[row, at - 1])]
            label = int(batch.tokens[row, at])
            total -= np.exp(-(j - 1) / 1.5) * log_softmax(said.astype(np.float64))[label]
            right[j - 1] += said.argmax() == label
            rows[j - 1] += 1
    assert float(found) == pytest.approx(total, rel=1e-4)
    plain = LOSS(head, target, batch, jax.random.key(5), objective)[1]
    assert float(sums["count"]) == pytest.approx(float(plain["count"]))  # whose program may sum in other chunks
    assert right.sum() > 0
    for k in range(BLOCK - 1):
        assert (float(sums[f"alpha_{k}"]), float(sums[f"alpha_{k}/rows"])) == (right[k], rows[k])


def test_the_loss_of_dspark(target, dspark, batch):
    """0.1 cross-entropy, 0.9 L1, and the confidence head's own, up to a block's first token that does not count."""
    objective = DflashObjective(anchors=ANCHORS, goal="dspark", decay_scale=4.0)
    found, sums = LOSS(dspark, target, batch, jax.random.key(5), objective)
    features, _ = FEATURES(target, batch, dspark.options.taps)
    chance = lambda logits: np.exp(log_softmax(np.asarray(logits, np.float64)))
    teacher, params = chance(target.logits(features)), module_to_dict(dspark)
    hidden = np.asarray(block_outputs(dspark, target, batch))
    blocks = DRAW(batch.segment, batch.counted, ANCHORS, jax.random.key(5))
    total = weight = 0.0
    for row, n in np.ndindex(2, ANCHORS):
        anchor = int(blocks.anchor[row, n])
        for k in range(BLOCK):
            at = anchor + 1 + k
            inside = at < LENGTH and batch.segment[row, at] == batch.segment[row, anchor]
            if not (blocks.real[row, n] and inside and batch.counted[row, at]):
                break
            before, label, h = int(batch.tokens[row, at - 1]), int(batch.tokens[row, at]), hidden[row, anchor, k]
            first = np.asarray(params["markov.embedding"])[before]
            drafted = chance(
                np.asarray(target.logits(jnp.asarray(h))) + first @ np.asarray(params["markov.head.kernel"])
            )
            distance = np.abs(drafted - teacher[row, at - 1]).sum()
            odds = np.concatenate([h, first]) @ np.asarray(params["confidence.proj.kernel"])[:, 0]
            sure, rate = 1 / (1 + np.exp(-odds - float(params["confidence.proj.bias"][0]))), 1 - distance / 2
            lost = -0.1 * np.log(drafted[label]) + 0.9 * distance
            lost -= rate * np.log(sure) + (1 - rate) * np.log(1 - sure)
            total, weight = total + np.exp(-k / 4) * lost, weight + np.exp(-k / 4)
    assert float(found) == pytest.approx(total, rel=1e-4)
    assert float(sums["count"]) == pytest.approx(weight, rel=1e-5)


def test_gradients_reach_every_weight(target, dspark, batch):
    objective = DflashObjective(anchors=ANCHORS, weighting="d-pace")
    slopes = jax.jit(jax.grad(lambda head: dflash.loss(head, target, batch, None, objective)[0]))(dspark)
    for name, slope in module_to_dict(slopes).items():
        assert np.isfinite(slope).all() and np.abs(slope).max() > 0, name


def test_the_loss_with_64_bit_types(target, dspark, batch):
    with jax.enable_x64(True):
        found = jax.eval_shape(LOSS, dspark, target, batch, jax.random.key(0), DflashObjective(anchors=3))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}


def test_a_head_is_trained_and_used(ckpt, data):
    options = ("--block", 4, "--layers", 1, "--anchors", 16, "--markov-rank", 8)
    engine, lines = trained("dflash", ckpt, "--data", data, *options)
    assert {"alpha_0", "alpha_1", "alpha_2"} <= lines[0].keys()
    assert str(engine.method).startswith("dflash,block=4+chain,length=3")
    settings = heads.read_head(ckpt / "heads/dflash", "dflash").settings
    assert (settings["block"], len(settings["taps"]), settings["mask_token"]) == (4, 1, 255)
