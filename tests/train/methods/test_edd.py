"""`jaxspec-train edd`: its loss, the tokens that each token sees, and training a head that then drafts."""

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxspec
from jaxspec.checkpoint import config_json
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.drafters.edd import EddHead
from jaxspec.model.llama import Llama
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import BlockObjective, Distillation
from jaxspec.train.methods import edd
from jaxspec.train.run.packed import distil, hidden_states, read
from tests.evaluate import tiny
from tests.lossless.harness import models
from tests.train.command import trained
from tests.train.windows import two_windows

LENGTH, VOCAB = 24, 23
READ, PREDICT = jax.jit(read, static_argnums=3), jax.jit(edd.predict)


@pytest.fixture(scope="module")
def target() -> Llama:
    return models(VOCAB).target


@pytest.fixture(scope="module")
def head(target: Llama) -> EddHead:
    return EddHead(dataclasses.replace(target.config, num_layers=1), rngs=nnx.Rngs(5), tap=0)


@pytest.fixture(scope="module")
def batch() -> Windows:
    return two_windows(15, 9, VOCAB)


def drafts(head: EddHead, target: Llama, batch: Windows, length: int) -> np.ndarray:
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    (hidden,) = READ(target, tokens, segment, (head.tap + 1,)).taps
    rounds = edd.rounds_of(segment, jnp.asarray(length), longest=10)
    return np.asarray(PREDICT(head, tokens, hidden, rounds), np.float64)


def learnt(batch: Windows) -> np.ndarray:
    """Whether the token after each is one that counts, of the same document."""
    segment = np.asarray(batch.segment)
    return np.asarray(batch.counted)[:, 1:] & (segment[:, 1:] == segment[:, :-1])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize(
    "objective", [BlockObjective(), BlockObjective(teacher_temperature=0.5), BlockObjective("cross-entropy")]
)
def test_loss_is_the_papers(objective: BlockObjective, target, head, batch):
    """Eq. 4, of a sharper target too, or the text's cross-entropy, token after token; without a key in blocks of the
    middle length."""
    says = target.logits(hidden_states(target, jnp.asarray(batch.tokens), jnp.asarray(batch.segment)))
    theirs = log_softmax(np.asarray(says, np.float64) / objective.teacher_temperature)
    ours = log_softmax(drafts(head, target, batch, 7))
    total, places = 0.0, np.argwhere(learnt(batch))
    for row, i in places:
        p, log_p, log_q = np.exp(theirs[row, i]), theirs[row, i], ours[row, i]
        total += (
            (p * (log_p - log_q)).sum() if objective.goal == "forward-kl" else -log_q[int(batch.tokens[row, i + 1])]
        )
    found, sums = jax.jit(partial(edd.loss, objective=objective))(head, target, batch, None)
    assert float(sums["count"]) == len(places)
    assert float(found) == pytest.approx(total, rel=1e-5)


def test_what_a_sharpened_teacher_teaches(batch):
    """The target's distribution at that temperature; at 1 the KL equals the KL without a temperature."""
    says = 3 * jax.random.normal(jax.random.key(0), (2, LENGTH, VOCAB))
    sharp = Distillation(teacher_temperature=0.5)
    assert float(distil(sharp, 2 * says, says, batch)[0]) == pytest.approx(0, abs=1e-4)
    assert float(distil(sharp, says, says, batch)[0]) > 1
    drafted = jax.random.normal(jax.random.key(1), says.shape)
    each = optax.kl_divergence(jax.nn.log_softmax(drafted[:, :-1]), jax.nn.softmax(says[:, :-1]))
    untouched = (each * learnt(batch)).sum()
    assert float(distil(Distillation(), drafted, says, batch)[0]) == float(untouched)


def test_the_length_of_blocks_is_drawn_at_every_step(target, head, batch):
    """From the shortest to the longest, both among them, inside one compiled program."""
    loss = jax.jit(partial(edd.loss, objective=BlockObjective(block_min=3, block_max=5)))
    found = {round(float(loss(head, target, batch, jax.random.key(seed))[0]), 3) for seed in range(40)}
    fixed = lambda n: edd.loss(head, target, batch, None, BlockObjective(block_min=n, block_max=n))[0]
    np.testing.assert_allclose(sorted(found), sorted(float(fixed(n)) for n in (3, 4, 5)), atol=2e-3)


def test_neither_rows_nor_documents_see_each_other(target, head, batch):
    """Another first document, another first row: nothing changes in the others."""
    other = jnp.asarray(batch.tokens).at[0, :15].set((jnp.asarray(batch.tokens)[0, :15] + 1) % VOCAB)
    before, after = (drafts(head, target, dataclasses.replace(batch, tokens=t), 5) for t in (batch.tokens, other))
    np.testing.assert_array_equal(before[0, 15:], after[0, 15:])
    np.testing.assert_array_equal(before[1], after[1])
    assert (np.abs(before[0, :15] - after[0, :15]).max(axis=-1) > 1e-3).all()


def test_a_document_is_drafted_alike_wherever_it_stands(target, head, batch):
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    alone = Windows(tokens=tokens[:1, 15:], segment=segment[:1, 15:], counted=jnp.asarray(batch.counted)[:1, 15:])
    found = drafts(head, target, batch, 4)[0, 15:]
    np.testing.assert_allclose(found, drafts(head, target, alone, 4)[0], atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_it_begins_as_the_targets_embedding_first_layer_norm_and_head(tied: bool):
    target = Llama(dataclasses.replace(models(20, 3).target.config, tie_embeddings=tied), rngs=nnx.Rngs(0))
    begun = module_to_dict(edd.initial(target, 1).decoder)
    whole = module_to_dict(target)
    assert begun.keys() == {name for name in whole if not name.startswith(("layers.1.", "layers.2."))}
    for name, value in begun.items():
        np.testing.assert_array_equal(value, whole[name])
        assert value is not whole[name]  # training donates its arrays


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("target") / "ckpt", num_layers=2)


def test_a_head_is_trained_and_used(ckpt, data, tmp_path):
    copy, features = shutil.copytree(ckpt, tmp_path / "ckpt"), tmp_path / "features"
    engine, lines = trained("edd", copy, "--data", data, "--cache-features", features, method="edd+chain")
    assert {len(np.load(window)) for window in features.glob("window-*.npy")} == {2}  # features, and the tap
    assert lines[-1]["evaluation"]["tau"] > 1 and len(lines[-1]["evaluation"]["acceptance"]) == 5
    config = json.loads((copy / "heads/edd/config.json").read_text())
    assert config["settings"] == {"tap": 0}
    (copy / "heads/edd/config.json").write_text(json.dumps({**config, "settings": {"tap": 2}}))
    with pytest.raises(config_json.CheckpointError, match=r"reads layer 2 \(from 0\) and this target has 2"):
        jaxspec.Engine(engine.model, "edd")
