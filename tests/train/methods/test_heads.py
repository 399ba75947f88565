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
from jaxspec.checkpoint import heads, loading
from jaxspec.checkpoint.config_json import CheckpointError, read_config
from jaxspec.checkpoint.loading import load
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.convert import heads as published_heads
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.eagle import Eagle
from jaxspec.drafters.medusa import Medusa
from jaxspec.engine.head_weights import head_config, read_shape, restore_head
from jaxspec.host.buckets import to_path
from jaxspec.model.llama import Llama
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import Distillation
from jaxspec.train.methods import draft_model, lm
from tests.bucket import NAME, Bucket
from tests.evaluate import tiny
from tests.evaluate.tiny import TEMPLATE, checkpoint
from tests.train.command import QUICK, command, drafts


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
    for name, count in (("a.py", 60), ("shutil.py", 6)):
        (path / name).write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(count)))
    turns = [{"from": "human", "value": "add one to x"}, {"from": "gpt", "value": "x + 1 is what you want"}]
    (path / "talk.json").write_text(json.dumps([{"conversations": turns}] * 30 + [{"conversations": []}]))
    return path


@pytest.fixture(scope="module")
def eagle(target: Path, data: Path) -> tuple[Path, str]:
    """A target with a trained head, and the output of its training."""
    code, err = command("eagle", "--target", target, "--data", data, "--chat-arg", "style=x", "--bias", *QUICK)
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
    drafts(engine)


def test_chat_options_without_conversations_are_refused(target, data, tmp_path):
    text, out = ("--data", data / "a.py", "--system", "be brief"), tmp_path / "out"
    code, err = command("eagle", "--target", target, *text, "--out", out, *QUICK)
    assert (code, err.splitlines()[-1][:55]) == (2, "error: the data holds no conversations, to which --chat")
    code, err = command("lm", *text, out)
    assert (code, err.splitlines()[-1][:52]) == (2, "error: a new model has no chat template, so --chat-a")
    code, err = command("generate", "--target", target, *text, "--out", out)
    assert (code, err.splitlines()[-1][:38]) == (2, "error: prompt 0 is not a conversation,")
    assert not out.exists()


def test_a_trained_head_goes_out_and_comes_back(eagle, tmp_path):
    """With the bias in `fc` that was asked for: the same bits, and the same drafts, after export."""
    target, _ = eagle
    head = target / "heads/eagle"
    published_heads.export(head, tmp_path / "published", "eagle", target)
    config = json.loads((tmp_path / "published/config.json").read_text())
    assert config["bias"] and "fc.bias" in load_file(tmp_path / "published/model.safetensors")
    assert heads.read_head(head, "eagle").settings["bias"] and not options.Eagle(target=target).bias
    published_heads.convert(tmp_path / "published", tmp_path / "back", target)
    model = load(target, "float32")
    ours, theirs = (module_to_dict(restore_head(model, Eagle(), path)) for path in (head, tmp_path / "back"))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert np.abs(np.asarray(ours["fc.bias"])).max() > 0  # it has learnt
    texts = [drafts(jaxspec.Engine(model, f"eagle@{path}")) for path in (head, tmp_path / "back")]
    assert [each.statistics for each in texts[0]] == [each.statistics for each in texts[1]]


def test_a_head_is_written_into_a_bucket(target: Path, data: Path, in_bucket: Bucket, tmp_path: Path):
    out = to_path(f"gs://{NAME}/head")
    (out / ".unfinished").write_text("")  # by a run that was killed
    few = ("--steps", 1, "--batch-size", 4, "--context", 48, "--run", tmp_path / "run")
    code, err = command("eagle", "--target", target, "--data", data / "a.py", "--out", out, *few)
    assert code == 0 and f"wrote {out}: eagle" in err, err
    assert restore_head(load(target), Eagle(), out) is not None
    code, err = command("eagle", "--target", target, "--data", data / "a.py", "--out", out, *few)
    assert code == 2 and f"{out} exists already" in err


def test_a_draft_model_is_distilled_and_lies_beside_others(target, data, tmp_path):
    """EDD's VDM, as --help has it: one layer of the target's shape under a name of its own."""
    path = shutil.copytree(target, tmp_path / "ckpt", ignore=shutil.ignore_patterns("heads"))
    code, err = command(
        *("draft-model", "--target", path, "--data", data / "talk.json", "--out", path / "heads/vdm"),
        *("--chat-arg", "style=x", "--goal", "cross-entropy", "--steps", 20, "--batch-size", 4, "--context", 32),
        *("--learning-rate", 3e-3, "--seed", 1),
    )
    assert code == 0, err
    lines = map(json.loads, (path / "heads/vdm.run/metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    config = read_config(path / "heads/vdm")
    assert (config.chat_args, config.dtype) == ({"style": "x"}, "bfloat16")
    model = jaxspec.load(path)
    assert model.heads == ("vdm",)
    engine = jaxspec.Engine(model, "draft-model@vdm+chain,length=5")
    assert engine.models.draft.config == dataclasses.replace(model.config.model, num_layers=1)
    drafts(engine)

    file = path / "heads/vdm/config.json"
    file.write_text(file.read_text().replace('"norm_eps": 1e-05', '"norm_eps": 2e-05'))
    again = ("--init", "vdm", "--steps", 1, "--learning-rate", 1e-9, "--batch-size", 2, "--context", 16)
    code, err = command("draft-model", "--target", path, "--data", data / "talk.json", *again, "--out", tmp_path / "on")
    assert code == 0 and "start from the target's" not in err, err
    assert read_config(tmp_path / "on").model.norm_eps == 2e-5  # that of the head, not of the target
    recipe = options.DraftModel(target=path)  # what the paper's appendix B has for its draft models
    assert (recipe.layers, recipe.objective) == (1, Distillation("forward-kl", 1.0))
    assert (recipe.recipe.learning_rate, recipe.recipe.batch_size, recipe.recipe.optimizer) == (1e-4, 8, "adamw")


def test_a_draft_model_as_wide_as_a_tied_target_starts_from_its_embedding(data, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "MODEL", dataclasses.replace(tiny.MODEL, tie_embeddings=True))
    path = checkpoint(tmp_path / "ckpt")
    monkeypatch.setattr(draft_model.heads, "train", lambda job, drafter, shape, model, loss, write: model)
    settings = options.DraftModel(target=path, hidden_size=32, data=options.DataMixture(data / "a.py"))
    started = module_to_dict(draft_model.train(settings))
    embedding = module_to_dict(jaxspec.load(path, "float32").target)["embedding"]
    np.testing.assert_array_equal(started["embedding"], embedding)
    np.testing.assert_array_equal(started["head.kernel"], embedding.T)


def test_forward_kl_of_the_target_itself_is_zero():
    shape = lm.shape(40, layers=1, hidden_size=16, head_dim=8, context=12)
    model, loss = Llama(shape, rngs=nnx.Rngs(0)), jax.jit(draft_model.loss, static_argnums=(3, 4))
    tokens = jax.random.randint(jax.random.key(0), (2, 12), 0, 40)
    batch = Windows(tokens=tokens, segment=jnp.zeros_like(tokens), counted=jnp.ones(tokens.shape, bool))
    total, sums = loss(model, model, batch, None, Distillation())
    assert float(total) == pytest.approx(0, abs=1e-5)
    assert float(sums["count"]) == 22
    other = Llama(shape, rngs=nnx.Rngs(1))
    assert float(loss(other, model, batch, None, Distillation())[0]) > 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("eagle", "--target", "/nowhere"), "there is no readable jaxspec checkpoint at /nowhere"),
        (("eagle", "--target", "builtin"), "a head for the builtin target needs --out"),
        (("eagle", "--target", "TARGET", "--noise", -1), "--noise must not be below 0"),
        (("eagle", "--target", "TARGET", "--context", 3), "--context must be from 4 to 256"),
        (("eagle", "--target", "TARGET", "--out", "."), ". has no name of its own; name the output itself"),
        (("eagle", "--target", "TARGET", "--generated-share", 1), "--generated-share must be between 0 and 1, not 1"),
        (("eagle", "--target", "TARGET", "--generated-share", 0.9), "--generated-share has an effect only with --"),
        (("eagle", "--target", "TARGET", "--open-data", "/nowhere"), "/nowhere is neither a file nor a folder"),
        (("eagle", "--target", "TARGET", "--strict"), "talk.json#30: its conversations are empty"),
        (("draft-model", "--target", "TARGET", "--layers", 0), "--layers must be at least 1"),
        (("draft-model", "--target", "TARGET", "--hidden-size", 33), "--hidden-size 33 is not a multiple of 8, "),
        (("eagle", "--target", "TARGET", "--context", 0, "--steps", 1), "--context must be from 4 to 256 for this tar"),
        (
            ("eagle", "--target", "TARGET", "--context", 999, "--steps", 1),
            "--context must be from 4 to 256 for this target, not 999",
        ),
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


def test_a_run_is_not_resumed_with_another_dtype_or_target(target, data, tmp_path, monkeypatch):
    """As on a device of another default dtype, or after what is at the same path has changed."""
    ckpt = tmp_path / "ckpt"
    shutil.copytree(target, ckpt, ignore=shutil.ignore_patterns("heads"))
    given = ("eagle", "--target", ckpt, "--data", data, "--steps", 2, "--batch-size", 2, "--context", 32)
    assert command(*given)[0] == 0
    shutil.rmtree(ckpt / "heads/eagle")
    with monkeypatch.context() as patch:
        patch.setattr(loading, "default_dtype", lambda: "bfloat16")
        code, err = command(*given)
        assert code == 2
        assert "other settings (--dtype is float32 there and bfloat16 here); delete it or" in err.splitlines()[-1]
    (ckpt / "config.json").write_text((ckpt / "config.json").read_text() + "\n")
    code, err = command(*given)
    assert code == 2
    assert "other settings (the hash of the target is " in err.splitlines()[-1]


def test_a_head_of_another_target_is_refused(eagle, tmp_path):
    target, _ = eagle
    config = heads.read_head(target / "heads/eagle", "eagle")
    with pytest.raises(CheckpointError, match="is for the drafter eagle, and not for medusa"):
        heads.read_head(target / "heads/eagle", "medusa")
    other = lm.shape(300, layers=1, hidden_size=32, head_dim=8, context=12)
    with pytest.raises(CheckpointError, match="is for a target of vocabulary 256, and this target's is 300"):
        heads.check_same_shape(target, config.model, other)


def test_a_head_may_be_narrower_than_its_target(target, tmp_path):
    config = read_config(target)
    shape = HeadShape(dataclasses.replace(config.model, hidden_size=8), {"heads": 1})
    heads.write_config(tmp_path, head_config(Medusa(), shape, config, "float32"))
    assert read_shape(tmp_path, Medusa(), config.model) == shape
    wide = dataclasses.replace(config.model, hidden_size=999)
    with pytest.raises(CheckpointError, match=f"hidden size {config.model.hidden_size}, and this target's is 999"):
        read_shape(tmp_path, Medusa(), wide)
