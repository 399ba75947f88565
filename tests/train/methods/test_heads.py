"""`jaxspec-train eagle` and `draft-model`, from a target to a head that drafts for it."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import jaxspec
from jaxspec.checkpoint import heads
from jaxspec.checkpoint.config_json import CheckpointError, read_config
from jaxspec.checkpoint.loading import load
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.convert import heads as published_heads
from jaxspec.drafters.eagle import Eagle
from jaxspec.engine.head_weights import restore_head
from jaxspec.model.llama import Llama
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import Distillation
from jaxspec.train.methods import draft_model, lm
from jaxspec.train.options import DraftModel
from tests.evaluate.tiny import TEMPLATE, checkpoint
from tests.train.command import QUICK, command


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint over bytes, whose chat template has an argument."""
    path = checkpoint(tmp_path_factory.mktemp("target") / "ckpt")
    (path / "chat_template.jinja").write_text("{{ style }}" + TEMPLATE)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text and conversations; `shutil.py` is held out by its name."""
    path = tmp_path_factory.mktemp("data")
    for name in ("a.py", "shutil.py"):
        (path / name).write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)))
    turns = [{"from": "human", "value": "add one to x"}, {"from": "gpt", "value": "x + 1 is what you want"}]
    (path / "talk.json").write_text(json.dumps([{"conversations": turns}] * 30 + [{"conversations": []}]))
    return path


@pytest.fixture(scope="module")
def eagle(target: Path, data: Path) -> tuple[Path, str]:
    """A target with a trained head, and the output of its training."""
    code, err = command("eagle", "--target", target, "--data", data, "--chat-arg", "style=x", *QUICK)
    assert code == 0, err
    return target, err


def test_a_head_is_trained_measured_and_used(eagle):
    target, err = eagle
    assert "skipped 1 of 33 records: talk.json#30: its conversations are empty" in err
    assert err.splitlines()[-1].startswith(f"wrote {target}/heads/eagle: eagle, ")
    run = target / "heads/eagle.run"
    evaluations = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if "eval" in line]
    assert [line["step"] for line in evaluations] == [15, 30]
    assert evaluations[1]["evaluation"]["loss"] < evaluations[0]["evaluation"]["loss"]
    assert len(evaluations[1]["evaluation"]["acceptance"]) == 5
    assert evaluations[1]["evaluation"]["tau"] >= 1
    assert "0-α" in (run / "training.svg").read_text() or (run / "training.svg").stat().st_size > 5000

    model = jaxspec.load(target)
    assert model.heads == ("eagle",)  # and not its run
    assert heads.read_config(target / "heads/eagle").chat_args == {"style": "x"}
    engine = jaxspec.Engine(model)
    assert str(engine.method) == "eagle+chain,length=4+fixed"
    plain = jaxspec.Engine(model, "plain").generate("def f", max_new_tokens=30)[0]
    assert engine.generate("def f", max_new_tokens=30)[0].tokens == plain.tokens


def test_chat_options_without_conversations_are_refused(target, data, tmp_path):
    text, out = ("--data", data / "a.py", "--system", "be brief"), tmp_path / "out"
    code, err = command("eagle", "--target", target, *text, "--out", out, *QUICK)
    assert (code, err.splitlines()[-1][:55]) == (2, "error: the data holds no conversations, to which --chat")
    code, err = command("lm", *text, out)
    assert (code, err.splitlines()[-1][:52]) == (2, "error: a new model has no chat template, so --chat-a")
    code, err = command("generate", "--target", target, *text, "--out", out)
    assert (code, err.splitlines()[-1][:38]) == (2, "error: prompt 0 is not a conversation,")
    assert not out.exists()


@pytest.mark.parametrize("bias", [False, True])
def test_a_trained_head_goes_out_and_comes_back(bias, eagle, data, tmp_path):
    """Without a bias in `fc` unless one is asked for; either way the same bits, and the same drafts, after export."""
    target, _ = eagle
    head = target / "heads/eagle"
    if bias:
        head = tmp_path / "biased"
        code, err = command("eagle", "--target", target, "--data", data, "--out", head, *QUICK, "--bias")
        assert code == 0, err
    published_heads.export(head, tmp_path / "published", "eagle", target)
    config = json.loads((tmp_path / "published/config.json").read_text())
    names = load_file(tmp_path / "published/model.safetensors").keys()
    assert (config["bias"], "fc.bias" in names) == (bias, bias)
    assert heads.read_head(head, "eagle").settings["bias"] == bias
    published_heads.convert(tmp_path / "published", tmp_path / "back", target)
    model = load(target, "float32")
    ours, theirs = (module_to_dict(restore_head(model, Eagle(), path)) for path in (head, tmp_path / "back"))
    assert ours.keys() == theirs.keys() and ("fc.bias" in ours) == bias
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    if bias:
        assert np.abs(np.asarray(ours["fc.bias"])).max() > 0  # it has learnt
    texts = [
        jaxspec.Engine(model, f"eagle@{path}+chain").generate("def f", max_new_tokens=20)[0]
        for path in (head, tmp_path / "back")
    ]
    assert (
        texts[0].tokens
        == texts[1].tokens
        == jaxspec.Engine(model, "plain").generate("def f", max_new_tokens=20)[0].tokens
    )
    assert texts[0].statistics == texts[1].statistics


def test_the_same_command_gives_the_same_bits(eagle, data, tmp_path):
    """With features from the disk too: those are the ones that the step would compute."""
    target, _ = eagle
    for name, options in (("again", ()), ("cached", ("--cache-features", tmp_path / "features"))):
        same = ("--target", target, "--data", data, "--chat-arg", "style=x", *QUICK)
        code, err = command("eagle", *same, "--out", tmp_path / name, *options)
        assert code == 0, err
    weights = lambda path: {
        name: np.asarray(array)
        for name, array in module_to_dict(restore_head(load(target, "float32"), Eagle(), path)).items()
    }
    first, again, cached = (weights(path) for path in (target / "heads/eagle", tmp_path / "again", tmp_path / "cached"))
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    for name in first:
        np.testing.assert_allclose(cached[name], first[name], atol=0.02, err_msg=name)


@pytest.mark.parametrize("goal", ["forward-kl", "cross-entropy"])
def test_a_draft_model_is_distilled(goal, target, data, tmp_path):
    code, err = command(
        *("draft-model", "--target", target, "--data", data / "a.py", "--out", tmp_path / "draft", "--goal", goal),
        *("--steps", 20, "--batch-size", 4, "--context", 32, "--learning-rate", 3e-3, "--seed", 1),
    )
    assert code == 0, err
    assert "no text is held out" in err
    losses = [json.loads(line)["loss"] for line in (tmp_path / "draft.run/metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]
    engine = jaxspec.Engine(target, f"draft-model@{tmp_path / 'draft'}+chain")
    plain = jaxspec.Engine(target, "plain").generate("def f", max_new_tokens=20)[0]
    assert engine.generate("def f", max_new_tokens=20)[0].tokens == plain.tokens
    assert jaxspec.load(tmp_path / "draft").config.dtype == "bfloat16"


def test_a_vanilla_draft_model_lies_beside_others(target, data, tmp_path):
    """EDD's VDM, as --help has it: one layer of the target's shape under a name of its own."""
    path = shutil.copytree(target, tmp_path / "ckpt", ignore=shutil.ignore_patterns("heads"))
    code, err = command(
        *("draft-model", "--target", path, "--data", data, "--out", path / "heads/vdm", "--chat-arg", "style=x"),
        *("--steps", 2, "--batch-size", 4, "--context", 32),
    )
    assert code == 0, err
    assert read_config(path / "heads/vdm").chat_args == {"style": "x"}
    model = jaxspec.load(path)
    assert model.heads == ("vdm",)
    engine = jaxspec.Engine(model, "draft-model@vdm+chain,length=5")
    assert engine.models.draft.config == dataclasses.replace(model.config.model, num_layers=1)
    plain = jaxspec.Engine(model, "plain").generate("def f", max_new_tokens=20)[0]
    assert engine.generate("def f", max_new_tokens=20)[0].tokens == plain.tokens
    recipe = DraftModel(target=path)  # what the paper's appendix B has for its draft models
    assert (recipe.layers, recipe.objective) == (1, Distillation("forward-kl", 1.0))
    assert (recipe.recipe.learning_rate, recipe.recipe.batch_size, recipe.recipe.optimizer) == (1e-4, 8, "adamw")


def test_forward_kl_of_the_target_itself_is_zero():
    shape = lm.shape(40, layers=2, hidden_size=16, head_dim=8, context=12)
    model = Llama(shape, rngs=nnx.Rngs(0))
    tokens = jax.random.randint(jax.random.key(0), (2, 12), 0, 40)
    batch = Windows(tokens=tokens, segment=jnp.zeros_like(tokens), counted=jnp.ones(tokens.shape, bool))
    total, sums = draft_model.loss(model, model, batch, None, Distillation())
    assert float(total) == pytest.approx(0, abs=1e-5)
    assert float(sums["count"]) == 22
    other = Llama(shape, rngs=nnx.Rngs(1))
    assert float(draft_model.loss(other, model, batch, None, Distillation())[0]) > 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("eagle", "--target", "/nowhere"), "there is no readable jaxspec checkpoint at /nowhere"),
        (("eagle", "--target", "builtin"), "a head for the builtin target needs --out"),
        (("eagle", "--target", "TARGET", "--noise", -1), "--noise must not be below 0"),
        (("eagle", "--target", "TARGET", "--context", 3), "--context must be at least 4"),
        (("eagle", "--target", "TARGET", "--generated-share", 1), "--generated-share must be between 0 and 1, not 1"),
        (("eagle", "--target", "TARGET", "--open-data", "/nowhere"), "/nowhere is neither a file nor a folder"),
        (("eagle", "--target", "TARGET", "--strict"), "talk.json#30: its conversations are empty"),
        (("draft-model", "--target", "TARGET", "--layers", 0), "--layers must be at least 1"),
        (("draft-model", "--target", "TARGET", "--hidden-size", 33), "--hidden-size 33 is not a multiple"),
    ],
)
def test_bad_input_ends_in_one_sentence(arguments, words, target, data, tmp_path):
    shutil.copytree(target, tmp_path / "ckpt", ignore=shutil.ignore_patterns("heads"))
    before = sorted(tmp_path.rglob("*"))
    filled = (tmp_path / "ckpt" if argument == "TARGET" else argument for argument in arguments)
    code, err = command(*filled, "--data", data)
    assert code == 2
    assert words in err.splitlines()[-1]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_head_of_another_target_is_refused(eagle, tmp_path):
    target, _ = eagle
    config = heads.read_head(target / "heads/eagle", "eagle")
    with pytest.raises(CheckpointError, match="is for the drafter eagle, and not for medusa"):
        heads.read_head(target / "heads/eagle", "medusa")
    other = lm.shape(300, layers=1, hidden_size=32, head_dim=8, context=12)
    with pytest.raises(CheckpointError, match="a vocabulary of 256, and this target's is 300"):
        heads.check_same_shape(target, config.model, other)
