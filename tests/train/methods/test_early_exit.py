"""`jaxspec-train early-exit`: the layers that it loads and trains, and that decoding computes the same."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxspec
from jaxspec.checkpoint import config_json, parameters
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.loop import decode
from jaxspec.drafters.early_exit import EarlyExit, EarlyExitHead
from jaxspec.methods.method import parse_method
from jaxspec.model.attention import over_documents
from jaxspec.model.llama import Llama
from jaxspec.model.rope import rotary
from jaxspec.train.data.text import Windows
from jaxspec.train.methods import early_exit
from jaxspec.train.run import heads
from jaxspec.train.run.packed import positions
from tests.evaluate import tiny
from tests.lossless.harness import begun, early_exit_head, models, requests
from tests.train.command import QUICK, command, trained


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("target") / "ckpt", num_layers=2)


def test_trains_what_decodes():
    """The first draft of every round, with its probability, is what training computes at the root."""
    target = models(50).target
    head = early_exit_head(target)
    weights = Models(target=target, draft=head)
    spec = parse_method("early-exit+chain,length=1").speculation(True, record=True)
    state = begun(spec, weights, requests([[1, 2, 3, 4, 5, 6, 7, 8, 9, 3]], 20), (), 64)
    state = decode(spec, weights, state, jnp.int32(64))
    rounds, trace = int(state.round), state.trace
    assert trace is not None and rounds > 5
    segment = jnp.zeros(state.tokens.shape, jnp.int32)
    logs = jax.nn.log_softmax(exit_logits(head, target, state.tokens, segment))[0]
    at = 10  # the root of the first round is the token that prefill gave
    for each in range(rounds):
        drafted = int(trace.token[0, each, 1])
        assert drafted == int(logs[at].argmax())
        np.testing.assert_allclose(trace.log_confidence[0, each, 1], logs[at, drafted], atol=1e-4)
        at += int(state.history.committed[0, each])


def test_loss_is_the_papers():
    """Cross-entropy of the next token, position after position, over the tokens that count."""
    target = models(13).target
    head, length = early_exit_head(target), 11
    rng = np.random.default_rng(0)
    windows = Windows(
        tokens=jnp.asarray(rng.integers(0, 13, (8, length))),
        segment=jnp.array([[0] * 6 + [1] * 5, *([[2] * 4 + [3] * 7] * 7)]),
        counted=jnp.asarray(rng.random((8, length)) < 0.6),
    )
    tokens, segment = jnp.asarray(windows.tokens), jnp.asarray(windows.segment)
    logs = np.asarray(jax.nn.log_softmax(exit_logits(head, target, tokens, segment)), np.float64)
    total, count, right = 0.0, 0, 0
    for row, i in np.ndindex(8, length - 1):
        if windows.counted[row, i + 1] and segment[row, i] == segment[row, i + 1]:
            goal = int(windows.tokens[row, i + 1])
            total -= logs[row, i, goal]
            count += 1
            right += int(logs[row, i].argmax()) == goal
    found, sums = jax.jit(early_exit.loss)(head, bottom_of(target), windows, None)
    assert float(found) == pytest.approx(total, rel=1e-5)
    assert (float(sums["count"]), float(sums["agreement"])) == (count, right)


@jax.jit
def exit_logits(head: EarlyExitHead, target: Llama, tokens: jax.Array, segment: jax.Array) -> jax.Array:
    """The logits of an exit after the target's first layer."""
    angles, attend = rotary(target.config, positions(segment)), over_documents(segment)
    x, _ = target.layers[0](target.embed(tokens), angles, attend)
    return head(x, angles, [attend])[0]


def bottom_of(target: Llama) -> Llama:
    """The embedding and the first layer, as training loads them."""
    config = dataclasses.replace(target.config, num_layers=1, tie_embeddings=True)
    kept = {
        name: value for name, value in module_to_dict(target).items() if "layers.1" not in name and "head" not in name
    }
    return parameters.dict_to_module(parameters.abstract(config), kept)


def test_nothing_above_the_first_layers_is_read(target, monkeypatch):
    asked: set[str] = set()
    real = parameters.read_arrays
    monkeypatch.setattr(parameters, "read_arrays", lambda path, names: asked.update(names) or real(path, names))
    loaded = early_exit.load(target, "float32", first=1)
    assert asked == {name for name in asked if name.startswith("layers.0.")} | {"embedding", "norm"}
    whole = module_to_dict(parameters.restore(target, "float32"))
    assert all((value == whole[name]).all() for name, value in module_to_dict(loaded.target).items())
    assert loaded.config.model.num_layers == 2


@pytest.mark.parametrize("tied", [False, True])
def test_it_begins_as_the_targets_last_layers_norm_and_head(tied: bool):
    config = dataclasses.replace(models(20, 3).target.config, tie_embeddings=tied)
    target = Llama(config, rngs=nnx.Rngs(0))
    head = EarlyExitHead(dataclasses.replace(config, num_layers=2), rngs=nnx.Rngs(1), first=1)
    begun = heads.started(head, target, early_exit.sources_of(head, target.config))
    for mine, theirs in zip(begun.layers, target.layers[1:], strict=True):
        assert (mine.mlp.up.kernel[...] == theirs.mlp.up.kernel[...]).all()
    logits = target.embedding[...].T if target.lm_head is None else target.lm_head.kernel[...]
    assert (begun.lm_head.kernel[...] == logits).all()


def test_an_exit_without_a_layer_is_trained(target, data, tmp_path):
    """The trained head holds no layer; drafting with such a head is tested with its drafter."""
    copy = shutil.copytree(target, tmp_path / "ckpt")
    data = ("--data", data / "a.py")
    code, err = command("early-exit", "--target", copy, *data, "--exit-layers", 0, *QUICK, "--steps", 2)
    assert code == 0, err
    assert "no text is held out" in err
    assert json.loads((copy / "heads/early-exit/config.json").read_text())["settings"] == {
        "first": 1,
        "exit_layer": False,
    }
    assert set(parameters.read_shapes(copy / "heads/early-exit/params")) == {"norm", "head.kernel"}
    assert len(jaxspec.Engine(copy, "early-exit").models.draft.layers) == 0


def test_an_exit_is_trained_and_used(target, data, tmp_path):
    copy = shutil.copytree(target, tmp_path / "ckpt")
    engine, _ = trained("early-exit", copy, "--data", data)
    assert isinstance(engine.method.drafter, EarlyExit)
    config = json.loads((copy / "heads/early-exit/config.json").read_text())
    (copy / "heads/early-exit/config.json").write_text(json.dumps({**config, "settings": {"first": 9}}))
    with pytest.raises(config_json.CheckpointError, match="exits after 9 layers and this target has 2"):
        jaxspec.Engine(engine.model, "early-exit")
