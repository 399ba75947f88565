"""`jaxspec-train calibrator`: the labels that it collects, and the predictor fitted to them."""

import dataclasses
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxspec
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.heads import HeadConfig, write_config, write_head
from jaxspec.checkpoint.loading import load
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.controllers.cali_ts import AcceptancePredictor
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.drafters.early_exit import EarlyExit
from jaxspec.engine.head_weights import drafter_of
from jaxspec.methods.method import parse_method
from jaxspec.train.data.prompts import greedy_requests
from jaxspec.train.data.text import take
from jaxspec.train.decoding_options import Calibrator
from jaxspec.train.methods import acceptance_predictor, medusa
from jaxspec.train.methods.acceptance_predictor import Labels, Recorder
from jaxspec.train.options import Data
from tests.evaluate import tiny
from tests.lossless.harness import early_exit_head
from tests.train.command import command

K = 3
FITTING = Calibrator(target=Path(), head="", steps=200, rounds=32, learning_rate=1e-2)
SMALL = ("--samples", 6, "--prompt-tokens", 6, "--max-new-tokens", 16, "--batch-size", 2, "--steps", 50, "--length", 4)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint with an early exit that is right now and then."""
    path = tiny.checkpoint(tmp_path_factory.mktemp("target") / "ckpt", num_layers=2)
    head = early_exit_head(load(path, "float32").target)
    (folder := path / "heads/early-exit").mkdir(parents=True)
    write_head(folder, HeadConfig("early-exit", head.config, "float32", "float32", {"first": 1}), head)
    return path


def recorded(path: Path) -> tuple[jaxspec.Engine, jaxspec.Engine]:
    """An engine that keeps the hidden states of an early exit, and one that does not."""
    model = load(path, "float32")
    head = early_exit_head(model.target)
    method = parse_method(f"early-exit+chain,length={K}")
    width = model.config.model.hidden_size
    keeps = dataclasses.replace(method, controller=Recorder(K, width, width, "float32"))
    return jaxspec.Engine(model, keeps, draft=head), jaxspec.Engine(model, method, draft=head)


def test_labels_are_what_decoding_saw(target):
    """Against the recorded rounds of the engine, and hidden states that give the drafted tokens themselves."""
    recording, engine = recorded(target)
    prompts = [[1, 40, 41, 42, 43], [1, 50]]
    labels = acceptance_predictor.labels_of(recording, [Request(p, SamplingParams(max_new_tokens=20)) for p in prompts])
    head = engine.models.draft.lm_head.kernel[...]
    target_head, probs = engine.models.target.lm_head, jax.nn.log_softmax
    assert target_head is not None
    for text, generation in enumerate(engine.generate(prompts, max_new_tokens=20, record=True)):
        found = take(labels, np.asarray(labels.text) == text)
        assert generation.rounds is not None
        rounds = generation.rounds[:-1]
        assert len(found.accepted) == len(rounds) > 3
        for i, round_ in enumerate(rounds):
            count = int(generation.history.accepted[i])
            assert found.accepted[i].tolist() == [level < count for level in range(K)]
            assert found.compared[i].tolist() == [level <= count for level in range(K)]
            logits = jnp.asarray(found.draft_hidden[i]) @ head
            assert logits.argmax(-1).tolist() == round_.token[1:].tolist()
            np.testing.assert_allclose(found.log_top[i], probs(logits).max(-1), rtol=1e-3, atol=1e-5)
            # The feature before the round says the token that is the round's root.
            assert int((found.target_hidden[i] @ target_head.kernel[...]).argmax()) == int(round_.token[0])


def made_up(seed: int, rounds: int = 400) -> Labels:
    """Rounds whose drafts are accepted where the first number of the draft's hidden state is positive."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(rounds, K, 4)).astype(np.float32)
    right = hidden[:, :, 0] > 0
    accepted = np.cumprod(right, axis=1).astype(bool)
    before = np.concatenate([np.ones((rounds, 1), bool), accepted[:, :-1]], axis=1)
    target_hidden = rng.normal(size=(rounds, 5)).astype(np.float32)
    log_top = rng.uniform(-3, 0, (rounds, K)).astype(np.float32)
    return Labels(
        text=np.zeros(rounds, int), target_hidden=target_hidden, draft_hidden=hidden, log_top=log_top,
        accepted=accepted, compared=before,
    )  # fmt: skip


def test_what_can_be_told_apart_is():
    found, measured = acceptance_predictor.fit(made_up(0), made_up(1), FITTING)
    assert measured["loss"] < 0.5 * measured["base"]
    assert measured["share"] == pytest.approx(0.5, abs=0.1)
    drafted = lambda sign: jnp.array([[sign * 2.0, 0, 0, 0]])
    logits = lambda sign: found(jnp.array(2), jnp.zeros((1, 5)), drafted(sign), jnp.zeros(1))
    assert jax.nn.softmax(logits(1))[0, 1] > 0.9 and jax.nn.softmax(logits(-1))[0, 1] < 0.1


@pytest.mark.parametrize("inputs", ["both", "top-probability"])
def test_the_top_probability_is_judged_by(inputs: str):
    """Rounds whose drafts are accepted with a chance that it alone decides."""
    kinds: list[Labels] = []
    for seed in (0, 1):
        labels, rng = made_up(seed, 2000), np.random.default_rng(seed)
        right = rng.random(labels.log_top.shape) < 1 / (1 + np.exp(-3 - 2 * np.asarray(labels.log_top)))
        accepted = np.cumprod(right, axis=1).astype(bool)
        before = np.concatenate([np.ones((len(right), 1), bool), accepted[:, :-1]], axis=1)
        kinds.append(dataclasses.replace(labels, accepted=accepted, compared=before))
    found, measured = acceptance_predictor.fit(
        kinds[0], kinds[1], dataclasses.replace(FITTING, inputs=inputs, steps=400, learning_rate=0.05)
    )
    assert measured["loss"] < 0.85 * measured["base"]
    assert found.inputs == inputs and found.top is not None
    np.testing.assert_allclose(np.diff(found.top[...])[:, 0], [3, 2], atol=0.8)


def test_what_is_left_follows_from_the_texts_of_this_process(target: Path, tmp_path: Path, monkeypatch, capsys):
    now = [0.0]

    def labels_of(_: object, some: list[Request]) -> Labels:
        now[0] += 20
        return made_up(0, 3)

    monkeypatch.setattr(acceptance_predictor, "labels_of", labels_of)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    engine, asked = recorded(target)[0], [Request([1], SamplingParams())] * 6
    assert acceptance_predictor.collect(engine, asked[:2], 2, tmp_path).text.tolist() == [0] * 3
    capsys.readouterr()
    assert acceptance_predictor.collect(engine, asked, 2, tmp_path).text.tolist() == [0] * 3 + [2] * 3 + [4] * 3
    assert capsys.readouterr().err == "text 4 of 6: 20 s left\ntext 6 of 6: 0 s left\n"


def test_no_level_is_labelled_that_the_head_does_not_draft(target: Path, tmp_path: Path):
    """These Medusa heads repeat a token, as the random target does, so whole chains are accepted."""
    model = load(target, "float32")
    weights = medusa.initial(model.target, 2)
    write_head(
        head := tmp_path / "head", HeadConfig("medusa", model.config.model, "float32", "float32", {"heads": 2}), weights
    )
    more = (*SMALL, "--samples", 16, "--batch-size", 16)  # some are equal, and left out
    code, err = command("calibrator", "--target", target, "--head", head, "--out", tmp_path / "out", *more)
    assert code == 0 and "nan" not in err, err
    found = [np.load(file)["accepted"] for file in (tmp_path / "out.run/labels").iterdir()]
    assert {each.shape[1] for each in found} == {2}
    assert any(each.all(axis=1).any() for each in found)


def test_what_was_not_compared_does_not_count():
    labels = made_up(0)
    weights = AcceptancePredictor(5, 4, rngs=nnx.Rngs(0))
    lost = lambda labels: float(acceptance_predictor.loss(weights, labels))
    flipped = np.where(labels.compared, labels.accepted, ~np.asarray(labels.accepted))
    assert lost(dataclasses.replace(labels, accepted=flipped)) == lost(labels)
    assert lost(dataclasses.replace(labels, accepted=~np.asarray(labels.accepted))) != lost(labels)


def test_a_nan_is_ignored_where_nothing_was_compared_and_refused_elsewhere():
    labels, settings = made_up(0), dataclasses.replace(FITTING, inputs="both", steps=50)
    unknown = dataclasses.replace(labels, log_top=np.where(labels.compared, labels.log_top, np.nan))
    assert np.isfinite(acceptance_predictor.fit(unknown, unknown, settings)[1]["loss"])
    bad = dataclasses.replace(labels, log_top=np.full_like(labels.log_top, np.nan))
    with pytest.raises(ValueError, match="the loss of the predictor is not finite"):
        acceptance_predictor.fit(bad, bad, settings)


def test_drafts_of_one_kind_are_refused():
    labels = made_up(0)
    with pytest.raises(ValueError, match="accepted all drafts or none"):
        acceptance_predictor.fit(dataclasses.replace(labels, accepted=np.zeros_like(labels.accepted)), labels, FITTING)
    nothing = dataclasses.replace(labels, compared=np.zeros_like(labels.compared))
    with pytest.raises(ValueError, match="no draft was compared in the held-out texts"):
        acceptance_predictor.fit(labels, nothing, FITTING)


def test_a_predictor_is_made_where_cali_ts_looks_and_a_killed_run_goes_on(target, tmp_path):
    whole, torn, text = tmp_path / "whole", tmp_path / "torn", tmp_path / "text.txt"
    text.write_text("".join(f"{i} is the line\n" for i in range(40)))
    small = (*SMALL, "--data", text)
    shutil.copytree(target, whole)
    shutil.copytree(target, torn)
    code, err = command("calibrator", "--target", whole, "--head", "early-exit", *small)
    assert code == 0, err
    place = whole / "heads/early-exit/calibrator"
    assert err.splitlines()[-1].startswith(f"wrote {place}: a predictor for early-exit, loss ")

    real, calls = acceptance_predictor.labels_of, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            acceptance_predictor, "labels_of", lambda *a: calls.append(a) or (real(*a) if len(calls) < 3 else 1 / 0)
        )
        assert command("calibrator", "--target", torn, "--head", "early-exit", *small)[0] != 0
    assert not (torn / "heads/early-exit/calibrator").exists()
    before = text.read_text()
    text.write_text(before.replace("the", "a"))
    code, err = command("calibrator", "--target", torn, "--head", "early-exit", *small)
    assert code == 2 and "the hash of the prompts" in err.splitlines()[-1]
    text.write_text(before)
    code, err = command("calibrator", "--target", torn, "--head", "early-exit", *small)
    assert code == 0, err
    weights = [jaxspec.Engine(load(path), "early-exit+cali-ts").models.control for path in (whole, torn)]
    first, again = (jax.tree.map(np.asarray, module_to_dict(each)) for each in weights)
    assert all((first[name] == again[name]).all() for name in first)


def test_no_held_out_prompt_is_fitted(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "text.txt").write_text("one line\n" * 20 + "another\n" * 20)
    settings = dataclasses.replace(FITTING, data=Data(tmp_path / "text.txt"), samples=20, prompt_tokens=5)
    model = load(target, "float32")
    texts = [model.tokenizer.decode(each.tokens) for each in greedy_requests(model, settings)]
    assert sorted(texts) == ["anoth", "one l"]
    assert "2 of 20 prompts are left without duplicates" in capsys.readouterr().err


def test_each_head_has_its_drafter(target, tmp_path):
    model = load(target)
    assert drafter_of(target, "early-exit") == EarlyExit()
    assert drafter_of(target, str(target)) == DraftModel()
    write_config(tmp_path, HeadConfig("cali-ts", model.config.model, "float32", "float32", {}))
    with pytest.raises(CheckpointError, match="is for cali-ts, which is not a drafter"):
        drafter_of(target, str(tmp_path))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--head", "nothing"), "no head 'nothing' under"),
        (("--head", "early-exit", "--samples", 0), "--samples must be at least 1, not 0"),
        (("--head", "early-exit", "--seed", -1), "--seed must not be below 0, not -1"),
        (("--head", "early-exit", "--samples", 2, "--prompt-tokens", 9999), "lower --prompt-tokens"),
    ],
)
def test_what_cannot_be_is_refused(options, said, target, tmp_path):
    code, err = command("calibrator", "--target", target, "--out", tmp_path / "predictor", *options)
    assert code == 2 and said in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
