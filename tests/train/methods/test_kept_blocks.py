"""`jaxspec-train layer-skip`: the skipped blocks, the loss of the kept blocks, and a head that drafts with them."""

import shutil
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.drafters.layer_skip import KeptBlocks, SkipMask, layers_of, skip
from jaxspec.host.json_lines import to_line
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import quantized
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import BlockObjective
from jaxspec.train.methods import kept_blocks, skip_search
from jaxspec.train.methods.edd import rounds_of
from jaxspec.train.methods.kept_blocks import aggressive, gains
from jaxspec.train.methods.skip_search import Trial, read_skip_set, write_skip_set
from jaxspec.train.options import LayerSkip
from jaxspec.train.run.packed import read
from tests.evaluate import tiny
from tests.lossless.harness import kept_blocks as shaken
from tests.lossless.harness import models
from tests.train.command import QUICK, command, trained
from tests.train.windows import two_windows

LENGTH, VOCAB, LAYERS = 24, 23, 2


def trial(skips: SkipMask, speedup: float) -> Trial:
    return Trial(skips, speedup, acceptance_rate=0.5, tau=2.0)


class TestWhichBlocks:
    def test_gains_are_those_of_each_block_with_the_others_as_they_are(self):
        """Each of five blocks has a fixed gain. The first does harm, and is mostly left out along with the third."""
        rng, brings = np.random.default_rng(0), np.array([-0.05, 0.02, 0.2, 0.1, 0.0, -0.3])
        switches = rng.random((1000, 6)) < 0.5
        switches[:, 0] = np.where(rng.random(1000) < 0.9, switches[:, 2], switches[:, 0])
        trials = [
            trial(SkipMask(attention=tuple(row[:3].tolist()), mlp=tuple(row[3:].tolist())), float(1 + row @ brings))
            for row in switches
        ]
        found = gains(trials)
        np.testing.assert_allclose(found, brings, atol=0.02)
        assert layers_of(aggressive(trials, 2 / 3, 1 / 3)) == {"attention": [1, 2], "mlp": [0]}
        speedups = np.array([each.speedup for each in trials])
        out = switches[:, 0]
        assert speedups[out].mean() > speedups[~out].mean(), "a difference of means would credit the first block"

    def test_the_papers_shares(self):
        """30 and 13 of LLaMA-2-13B's 40; where no trial says anything, the first ones."""
        found = aggressive([trial(skip(40, [], []), 1.0)], 0.75, 0.325)
        assert layers_of(found) == {"attention": [*range(30)], "mlp": [*range(13)]}


@pytest.fixture(scope="module")
def target() -> Llama:
    return models(VOCAB).target


@pytest.fixture(scope="module")
def batch() -> Windows:
    return two_windows(15, 9, VOCAB, share=1.0)


def test_blocks_of_a_quantised_target_begin_as_its_floats(target):
    skips = skip(LAYERS, [0], [1])
    whole, begun = (module_to_dict(kept_blocks.initial(each, skips)) for each in (target, quantized(target, "int8")))
    assert whole.keys() == begun.keys()
    for name, value in whole.items():
        assert begun[name].dtype == jnp.float32
        np.testing.assert_allclose(begun[name], value, atol=float(jnp.abs(value).max()) / 127)


class TestLoss:
    def test_is_the_divergence_from_the_target(self, target, batch):
        """None where nothing is left out; else it has a slope for every block that is kept."""
        slope = jax.jit(jax.value_and_grad(partial(kept_blocks.loss, objective=BlockObjective()), has_aux=True))
        begun = lambda *left_out: kept_blocks.initial(target, skip(LAYERS, *left_out))
        (total, sums), _ = slope(begun([], []), target, batch, None)
        assert float(total) == pytest.approx(0, abs=1e-4)
        assert float(sums["count"]) == 2 * (LENGTH - 1) - 1  # not the first token of the second document
        (total, _), slopes = slope(begun([1], [0]), target, batch, None)
        assert float(total) > 1
        assert all(float(jnp.abs(one).max()) > 1e-3 for one in jax.tree.leaves(slopes))

    def test_neither_rows_nor_documents_see_each_other(self, target, batch):
        blocks = shaken(target, skip(LAYERS, [1], [0]))

        @jax.jit
        def drafts(tokens: jax.Array) -> jax.Array:
            segment = jnp.asarray(batch.segment)
            verified = read(target, tokens, segment).nodes
            return kept_blocks.predict(blocks, target, tokens, verified, rounds_of(segment, jnp.asarray(5), longest=10))

        tokens = jnp.asarray(batch.tokens)
        before, after = drafts(tokens), drafts(tokens.at[0, :15].set((tokens[0, :15] + 1) % VOCAB))
        np.testing.assert_array_equal(before[0, 15:], after[0, 15:])
        np.testing.assert_array_equal(before[1], after[1])
        assert (np.abs(before[0, :15] - after[0, :15]).max(axis=-1) > 1e-3).all()


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a searched set, and the search's run: leaving out the first attention and second MLP was good."""
    path = tiny.checkpoint(tmp_path_factory.mktemp("target") / "ckpt", num_layers=LAYERS)
    model = load(path, "float32")
    sets = [([], [], 1.0), ([0], [], 1.1), ([1], [], 0.7), ([0], [1], 1.2), ([0], [0], 0.8), ([0, 1], [1], 0.9)]
    trials = [trial(skip(LAYERS, attention, mlp), speedup) for attention, mlp, speedup in sets]
    write_skip_set(path / "heads/layer-skip", model.config, skip(LAYERS, [], [1]))
    (path / "heads/layer-skip.run").mkdir()
    lines = [{"settings": skip_search.identity(model)}, {"costs": {}}, *(each.to_json() for each in trials)]
    (path / "heads/layer-skip.run/trials.jsonl").write_text("".join(map(to_line, lines)))
    return path


def test_blocks_are_trained_and_used(ckpt, data, tmp_path):
    copy = shutil.copytree(ckpt, tmp_path / "ckpt")
    options = ("--data", data, "--aggressive", "--attention-share", 0.5, "--mlp-share", 0.5)
    name = "layer-skip-trained"
    engine, lines = trained("layer-skip", copy, *options, head=name, method=f"layer-skip@{name}+chain")
    assert lines[-1]["evaluation"]["tau"] > 1 and len(lines[-1]["evaluation"]["acceptance"]) == 5
    assert engine.model.heads == ("layer-skip", name)
    blocks = engine.models.draft
    assert isinstance(blocks, KeptBlocks)
    assert layers_of(blocks.skips) == {"attention": [0], "mlp": [1]}

    log = copy / "heads/layer-skip.run/trials.jsonl"
    log.write_text(log.read_text() + to_line(trial(skip(LAYERS, [1], [0]), 9.0).to_json()))
    code, err = command("layer-skip", "--target", copy, *QUICK, *options)
    assert code == 2 and "layer-skip-trained.run was started with another set" in err.splitlines()[-1]


def test_which_set_is_trained(ckpt):
    """The searched one, another one by its path, or one from the trials of a search."""
    model: Checkpoint = load(ckpt, "float32")
    chosen = lambda **asked: layers_of(kept_blocks.choose(LayerSkip(target=ckpt, **asked), model))
    assert chosen() == chosen(skip_set=ckpt / "heads/layer-skip") == {"attention": [], "mlp": [1]}
    assert chosen() == layers_of(read_skip_set(ckpt / "heads/layer-skip", model.config))
    assert chosen(aggressive=True, mlp_share=0.5) == {"attention": [0, 1], "mlp": [1]}
    moved = shutil.copytree(ckpt / "heads/layer-skip.run", ckpt.with_name("moved"))
    assert chosen(aggressive=True, search=moved, attention_share=0.5, mlp_share=0.0) == {"attention": [0], "mlp": []}
    config = (other := shutil.copytree(ckpt, ckpt.with_name("other"))) / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(ValueError, match="the hash of the target is"):
        skip_search.read_trials(moved, load(other, "float32"))
