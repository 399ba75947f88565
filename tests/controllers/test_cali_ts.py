"""Cali-TS: its estimate against numbers worked out by hand, its coin against the draws that the paper writes."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Bool, Key

from jaxspec import Controller, DraftSignals, Engine, Models, load
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.heads import HeadConfig, write_head
from jaxspec.controllers.cali_ts import INPUTS, AcceptancePredictor, CaliState, CaliTS, clipped_mean, draft_width
from jaxspec.decoding.round_records import to_rows
from jaxspec.engine.head_weights import load_control, load_head
from jaxspec.methods.method import parse_method
from jaxspec.model.config import LlamaConfig
from tests import checkpoints
from tests.controllers.rounds import MODELS, keys_of, round_of, signals
from tests.lossless.harness import models, speculation, weights

NUMBER = 100_000
NOISE = 5 * np.sqrt(0.25 / NUMBER)
ROUNDS = [(0, 4), (2, 4), (4, 4), (2, 2), (0, 0), (0, 1), (12, 12)]  # accepted, levels


def chance(logits: Array) -> Array:
    """The probability that the target accepts."""
    return jax.nn.softmax(logits)[:, 1]


class TestEstimate:
    def test_is_accepted_by_compared(self):
        """The prior is one comparison: (prior + accepted) / (1 + compared)."""
        controller = CaliTS(prior=0.5)
        state, found = controller.init(1), []
        for accepted, levels in ROUNDS:
            state = controller.update(state, round_of([accepted], [levels]))
            found.append(state.estimate.item())
        # accepted in all:  0        2        6        8        8        8         20
        # compared in all:  1        4        8        10       10       11        23
        assert found == pytest.approx([0.5 / 2, 2.5 / 5, 6.5 / 9, 8.5 / 11, 8.5 / 11, 8.5 / 12, 20.5 / 24])
        assert state.rounds.item() == 6  # all but the one in which nothing was drafted

    def test_as_printed_goes_to_one_whatever_is_accepted(self):
        """1 - theta_t = (1 - theta_0) / (t + 1): rejections have no influence (Eqs. 8 and 10)."""
        controller = CaliTS(prior=0.25, estimate="printed")
        good = bad = controller.init(1)
        for accepted in (3, 1, 4):
            good = controller.update(good, round_of([accepted], [accepted]))
            bad = controller.update(bad, round_of([accepted], [12]))
        assert good.estimate.item() == bad.estimate.item() == pytest.approx(1 - 0.75 / 9)
        for _ in range(100):
            bad = controller.update(bad, round_of([1], [12]))
        assert bad.estimate.item() == pytest.approx(1 - 0.75 / 109)
        assert CaliTS(prior=0.25).update(bad, round_of([0], [12])).estimate < bad.estimate

    def test_rows_do_not_see_each_other(self):
        controller = CaliTS()
        state = controller.init(len(ROUNDS))
        accepted, levels = zip(*ROUNDS, strict=True)
        for _ in range(2):
            state = controller.update(state, round_of(accepted, levels))
        for row, (one, many) in enumerate(ROUNDS):
            alone = controller.init(1)
            for _ in range(2):
                alone = controller.update(alone, round_of([one], [many]))
            assert [x[row].item() for x in jax.tree.leaves(state)] == [x.item() for x in jax.tree.leaves(alone)]
        idle = jax.tree.map(lambda x: x[4], state)
        assert jax.tree.leaves(idle) == jax.tree.leaves(jax.tree.map(lambda x: x[0], controller.init(1)))


class TestCoin:
    """Against theta ~ N(mu, sigma²), clipped, and chi ~ Bernoulli(theta), drawn by NumPy from Eqs. 6 and 7."""

    @pytest.mark.parametrize(("mean", "deviation"), [(0.5, 0.3), (0.9, 0.5), (1.2, 0.1), (0.0, 2.0), (0.3, 1e-4)])
    def test_mean_of_the_clipped_normal(self, mean: float, deviation: float):
        drawn = np.clip(np.random.default_rng(0).normal(mean, deviation, 10**6), 0, 1)
        found = clipped_mean(jnp.array([mean]), jnp.array([deviation]))
        assert found.item() == pytest.approx(drawn.mean(), abs=5 * drawn.std() / 1000 + 1e-6)

    @pytest.mark.parametrize("prediction", ["both", "model", "sampled"])
    @pytest.mark.parametrize("rounds", [0, 3, 1000])
    def test_is_the_papers(self, prediction: str, rounds: int):
        controller = CaliTS(sigma_model=0.3, sigma_sample=0.6, prediction=prediction)
        own = AcceptancePredictor(4, 3, rngs=nnx.Rngs(1))
        target, draft = 0.3 * np.random.default_rng(2).normal(size=(2, 4))
        half = np.full(NUMBER, 0.5)
        seen = signals(half, half, level=2, target=target, draft=draft[:3])
        assert seen.draft_hidden is not None
        log_top = jnp.log(seen.top_prob)
        predicted = chance(own(seen.level, seen.target_hidden, seen.draft_hidden, log_top))[0].item()
        assert 0.1 < predicted < 0.9 and abs(predicted - 0.2) > 0.1, "the two say the same, so nothing is tested"
        state = CaliState(
            estimate=jnp.full(NUMBER, 0.2), trials=jnp.zeros(NUMBER), rounds=jnp.full(NUMBER, float(rounds))
        )
        models = dataclasses.replace(MODELS, control=own)
        found = controller.keep_drafting(models, keys_of(NUMBER), state, seen)

        n = {"both": rounds, "model": 0, "sampled": rounds}[prediction]
        mu = (0.36 * predicted + n * 0.09 * 0.2) / (0.36 + n * 0.09)
        variance = 1 / (1 / 0.09 + n / 0.36)
        if prediction == "sampled":
            mu, variance = 0.2, 0.36 / (n + 1)
        rng = np.random.default_rng(3)
        chi = rng.random(NUMBER) < np.clip(rng.normal(mu, np.sqrt(variance), NUMBER), 0, 1)
        assert abs(found.mean().item() - chi.mean()) < 2 * NOISE


class TestPredictor:
    def test_the_formula_with_folded_matrices(self):
        own = AcceptancePredictor(4, 3, rngs=nnx.Rngs(0))
        assert own.target is not None and own.draft is not None
        rng = np.random.default_rng(0)
        target, draft = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(6, 3)).astype(np.float32)
        # The paper's W^i [D, D] and W_p [D + E, 2], of which the predictor stores products.
        transform, head = rng.normal(size=(10, 4, 4)).astype(np.float32), rng.normal(size=(7, 2)).astype(np.float32)
        own.target[...], own.draft.kernel[...] = jnp.asarray(transform @ head[:4]), jnp.asarray(head[4:])
        for level, matrix in ((1, 0), (2, 1), (10, 9), (11, 9), (40, 9)):
            logits = np.concatenate([target @ transform[matrix], draft], axis=1) @ head
            expected = np.exp(logits[:, 1]) / np.exp(logits).sum(axis=1)
            found = own(jnp.int32(level), jnp.asarray(target), jnp.asarray(draft), jnp.zeros(6))
            np.testing.assert_allclose(chance(found), expected, rtol=1e-5)

    def test_the_top_probability_adds_to_the_log_odds(self):
        hidden, log_top = jnp.ones((3, 4)), jnp.log(jnp.array([0.1, 0.5, 0.9]))
        both = AcceptancePredictor(4, 4, rngs=nnx.Rngs(0), inputs="both")
        alone = AcceptancePredictor(4, 4, rngs=nnx.Rngs(0), inputs="top-probability")
        odds = lambda own: jnp.diff(own(jnp.int32(1), hidden, hidden, log_top))[:, 0]
        before = odds(both)
        for own in (both, alone):
            assert own.top is not None
            own.top[...] = jnp.array([[0.0, 1.0], [0.5, 2.5]])
        assert [own.inputs for own in (both, alone)] == list(INPUTS[1:])
        np.testing.assert_allclose(odds(alone), 1 + 2 * log_top, rtol=1e-5)
        np.testing.assert_allclose(odds(both) - before, 1 + 2 * log_top, rtol=1e-4)

    def test_low_precision_weights_give_a_float32(self):
        own = AcceptancePredictor(4, 4, rngs=nnx.Rngs(0), dtype=jnp.dtype("bfloat16"))
        hidden = jnp.ones((2, 4), jnp.bfloat16)
        assert own(jnp.int32(1), hidden, hidden, jnp.zeros(2)).dtype == jnp.float32

    def test_width_of_every_drafters_hidden_states(self):
        everything = models(5)
        width = lambda method: draft_width(method.drafter, weights(speculation(method, True), everything))
        assert [width(parse_method(name)) for name in ("draft-model", "eagle")] == [16, 16]
        with pytest.raises(ValueError, match="ngram has no hidden states"):
            width(parse_method("ngram"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(checkpoints.make(tmp_path_factory.mktemp("cali")))


@pytest.fixture(scope="module")
def own(model):
    width = model.config.model.hidden_size
    return AcceptancePredictor(width, width, rngs=nnx.Rngs(0))


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """The folder of some head."""
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def write(head: Path, target: LlamaConfig, weights: AcceptancePredictor, inputs: str | None = None) -> None:
    """Puts a predictor for a target into the folder of a head."""
    (folder := head / "calibrator").mkdir()
    narrow = target.hidden_size if weights.draft is None else weights.draft.kernel[...].shape[0]
    settings = {
        "target_hidden": target.hidden_size,
        "draft_hidden": narrow,
        "inputs": weights.inputs if inputs is None else inputs,
    }
    write_head(folder, HeadConfig(CaliTS.name, target, "float32", "float32", settings), weights)


class TestEngine:
    METHOD = "draft-model+chain,length=3+cali-ts"

    def test_from_memory_and_from_the_heads_folder(self, model, own):
        plain = Engine(model, "plain").generate("abcabc", max_new_tokens=24)[0]
        with pytest.raises(CheckpointError, match=r"`jaxspec-train calibrator --target .*ckpt --head draft-model`"):
            Engine(model, self.METHOD)
        settings = {"max_new_tokens": 24, "temperature": 0.0}
        in_memory = Engine(model, self.METHOD, control=own).generate("abcabc", **settings)[0]
        write(model.path / "heads" / "draft-model", model.config.model, own)
        restored = Engine(model, self.METHOD)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, restored.models.control, own))
        found = restored.generate("abcabc", **settings)[0]
        assert found.tokens == in_memory.tokens == plain.tokens
        assert to_rows(found.history) == to_rows(in_memory.history)
        assert len(set(found.history.levels.tolist())) > 1, "it never stopped at another length"

    def test_with_the_drafts_top_probability(self, model, head: Path):
        width = model.config.model.hidden_size
        weights = AcceptancePredictor(width, width, rngs=nnx.Rngs(0), inputs="top-probability")
        assert weights.top is not None
        weights.top[...] = jnp.array([[0.0, 3.0], [0.0, 1.0]])
        write(head, model.config.model, weights)
        draft = load_head(model, parse_method("draft-model"))
        restored = load_control(model, parse_method(f"draft-model@{head}+cali-ts"), draft)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, restored, weights))
        found = Engine(model, self.METHOD, control=restored).generate("abcabc", max_new_tokens=24)[0]
        assert found.tokens == Engine(model, "plain").generate("abcabc", max_new_tokens=24)[0].tokens

    def test_of_unknown_inputs(self, model, own, head: Path):
        write(head, model.config.model, own, inputs="stars")
        draft = load_head(model, parse_method("draft-model"))
        with pytest.raises(
            CheckpointError, match="has inputs 'stars', which must be one of hidden, both, top-probability"
        ):
            load_control(model, parse_method(f"draft-model@{head}+cali-ts"), draft)

    def test_a_controller_of_ones_own_with_weights(self, model, head: Path):
        @final
        @dataclasses.dataclass(frozen=True)
        class Linear(Controller):
            name: ClassVar[str] = "linear"

            @property
            def needs_weights(self) -> bool:
                return True

            def build_weights(
                self, target_hidden: int, draft_hidden: int, dtype: jnp.dtype = jnp.dtype("float32"), bias: bool = True
            ) -> nnx.Linear:
                return nnx.Linear(target_hidden, 1, use_bias=bias, param_dtype=dtype, rngs=nnx.Rngs(0))

            def keep_drafting(
                self, models: Models, keys: Key[Array, " B"], state: Any, signals: DraftSignals
            ) -> Bool[Array, " B"]:
                return models.control(signals.target_hidden)[:, 0] > 0

        width = model.config.model.hidden_size
        weights = nnx.Linear(width, 1, use_bias=False, rngs=nnx.Rngs(7))
        settings = {"target_hidden": width, "draft_hidden": width, "bias": False}
        (head / "linear").mkdir()
        write_head(head / "linear", HeadConfig("linear", model.config.model, "float32", "float32", settings), weights)
        method = dataclasses.replace(parse_method("draft-model+chain,length=3"), controller=Linear())
        own = load_control(model, dataclasses.replace(method, head=str(head)), load_head(model, method))
        assert jnp.array_equal(own.kernel[...], weights.kernel[...])
        found = Engine(model, method, control=own).generate("abcabc", max_new_tokens=24)[0]
        assert found.tokens == Engine(model, "plain").generate("abcabc", max_new_tokens=24)[0].tokens

    def test_without_its_predictor(self, model):
        free = f"{self.METHOD},prediction=sampled"
        assert Engine(model, free).models.control is None
        assert Engine(model, "ngram+chain,length=3+cali-ts,prediction=sampled").generate("abcabc", max_new_tokens=8)

    @pytest.mark.parametrize(
        ("change", "says"),
        [({"hidden_size": 999}, "a target of hidden size 999"), ({"vocab_size": 9}, "is for a target of vocabulary 9")],
    )
    def test_of_another_target(self, change: dict, says: str, model, own, head: Path):
        write(head, dataclasses.replace(model.config.model, **change), own)
        method = parse_method(f"draft-model@{head}+cali-ts")
        with pytest.raises(CheckpointError, match=says):
            load_control(model, method, None)

    def test_of_another_drafter(self, model, head: Path):
        width = model.config.model.hidden_size
        write(head, model.config.model, AcceptancePredictor(width, 7, rngs=nnx.Rngs(0)))
        draft = load_head(model, parse_method("draft-model"))
        with pytest.raises(CheckpointError, match=r"trained for \{.*'draft_hidden': 7\}, not for \{"):
            load_control(model, parse_method(f"draft-model@{head}+cali-ts"), draft)


def test_a_drafter_without_hidden_states_is_refused():
    with pytest.raises(ValueError, match="predicts from the drafter's hidden states, and ngram has none; take beta-ts"):
        parse_method("ngram+cali-ts")
    assert parse_method("ngram+beta-ts").builder.depth == parse_method("ngram+cali-ts,prediction=sampled").builder.depth
