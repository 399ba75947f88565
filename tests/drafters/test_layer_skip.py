"""Layer skipping: the skipped blocks, the drafts, and the file that lists the blocks."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.checkpoint import heads
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.controllers.cali_ts import draft_width
from jaxspec.convert import inspect
from jaxspec.decoding import tree as trees
from jaxspec.decoding.drafter import HeadShape, Models, Prefix
from jaxspec.decoding.tree import Frontier
from jaxspec.drafters.layer_skip import KeptBlocks, LayerSkip, SkipMask, layers_of, skip
from jaxspec.engine.head_weights import head_config, restore_head
from jaxspec.methods.method import parse_method
from jaxspec.model.llama import Llama, forward
from jaxspec.train.methods import kept_blocks as training
from jaxspec.train.methods.edd import rounds_of
from jaxspec.train.run import packed
from tests.drafters.chain import chain
from tests.lossless.harness import begun, kept_blocks, models, requests, run, speculation

VOCAB, LAYERS = 50, 3
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 4, 5]]
SKIPS = skip(LAYERS, attention=[1, 2], mlp=[0, 2])


@pytest.fixture(scope="module")
def target() -> Llama:
    return models(VOCAB, LAYERS).target


@pytest.fixture(scope="module")
def prefix(target) -> Prefix:
    """Two prompts that the target has read; their last tokens are the roots."""
    return read(target, PROMPTS, rows=32)


def read(target: Llama, prompts: list[list[int]], rows: int) -> Prefix:
    """What the target has read: all but the last tokens, which are the roots."""
    spec = speculation(parse_method("plain"), True)
    weights = Models(target=target, draft=None)
    return begun(spec, weights, requests(prompts, 8), (), rows).prefix


def silenced(target: Llama, skips: SkipMask) -> Llama:
    """The target whose left-out blocks add nothing to the residual stream."""
    last = {"attention": "attention.o.kernel", "mlp": "mlp.down.kernel"}
    off = {f"layers.{i}.{last[kind]}" for kind, layers in layers_of(skips).items() for i in layers}
    assert off <= module_to_dict(target).keys()
    params = module_to_dict(target).items()
    return dict_to_module(target, {name: 0 * x if name in off else x for name, x in params})


@jax.jit
def draft(models: Models, prefix: Prefix, tokens):
    """Logits and hidden states after the root and after each of three drafted tokens, two of them siblings."""
    drafter = LayerSkip()
    tree = trees.init_tree(tokens[:, 0], 4, None)
    zero, yes = jnp.zeros((2, 3)), jnp.ones((2, 3), bool)
    parent = jnp.broadcast_to(jnp.array([0, 0, 1]), (2, 3))
    for i in range(3):  # the third hangs under the first
        some = slice(i, i + 1)
        tree = trees.add_nodes(
            tree, jnp.array([i + 1]), tokens[:, i + 1 : i + 2], parent[:, some], zero[:, some], yes[:, some]
        )
    state = drafter.init(models, 2, 32)
    drafts, state = drafter.root(models, state, prefix, tree)
    found = [(drafts.logits, drafts.hidden)]
    for level, nodes in ((1, [1, 2]), (2, [3])):
        node = jnp.broadcast_to(jnp.array(nodes), (2, len(nodes)))
        frontier = Frontier(node=node, live=jnp.ones(node.shape, bool), level=jnp.asarray(level))
        drafts, state = drafter.expand(models, state, prefix, tree, frontier)
        found.append((drafts.logits, drafts.hidden))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *found), tree


@jax.jit
def oracle(quiet: Llama, prefix: Prefix, tree: trees.DraftTree):
    """The whole tree in one forward of the silenced target, over what the true target knows of the prefix."""
    positions = prefix.length[:, None] - 1 + tree.depth
    out = forward(quiet, tree.token, positions, tree.ancestors, prefix.cache, prefix.length - 1)
    return quiet.logits(out.hidden), out.hidden


tokens = jnp.array([[3, 10, 11, 12], [5, 20, 21, 22]])


class TestDrafting:
    def test_is_the_target_with_silent_blocks(self, target, prefix):
        found, tree = draft(Models(target=target, draft=SKIPS), prefix, tokens)
        for mine, theirs in zip(found, oracle(silenced(target, SKIPS), prefix, tree), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
        other, _ = oracle(target, prefix, tree)
        assert np.abs(np.asarray(found[0] - other)).max() > 0.1, "nothing was left out"

    def test_traced_switches_are_the_same_and_compile_once(self, target, prefix):
        @given(st.lists(st.booleans(), min_size=2 * LAYERS, max_size=2 * LAYERS))
        def check(switches: list[bool]):
            skips = SkipMask(attention=tuple(switches[:LAYERS]), mlp=tuple(switches[LAYERS:]))
            found, tree = draft(Models(target=target, draft=skips.traced()), prefix, tokens)
            for mine, theirs in zip(found, oracle(silenced(target, skips), prefix, tree), strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-5)

        jitted: Any = draft  # has methods that its type does not show
        jitted.clear_cache()
        check()
        assert jitted._cache_size() == 1

    def test_rows_do_not_see_each_other(self, target, prefix):
        weights = Models(target=target, draft=SKIPS.traced())
        (logits, _), _ = draft(weights, prefix, tokens)
        (changed, _), _ = draft(weights, prefix, tokens.at[1].set(7))
        np.testing.assert_array_equal(logits[0], changed[0])
        assert (logits[1] != changed[1]).any()


class TestTrained:
    """The kept blocks with weights of their own."""

    def test_begin_as_the_set_drafts(self, target, prefix):
        begun = training.initial(target, SKIPS)
        (mine, _), _ = draft(Models(target=target, draft=begun), prefix, tokens)
        (theirs, _), _ = draft(Models(target=target, draft=SKIPS), prefix, tokens)
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
        kept, whole = module_to_dict(begun), module_to_dict(target)
        assert {name.rsplit(".", 1)[0] for name in kept if "kernel" in name} == {
            *(f"layers.0.attention.{name}" for name in "qkvo"),
            *(f"layers.1.mlp.{name}" for name in ("gate", "up", "down")),
        }
        assert all(value is not whole[name] for name, value in kept.items()), "training donates its arrays"

    def test_draft_in_place_of_the_targets(self, target, prefix):
        """As a target would that had them, and silence in place of the others, over the true target's prefix."""
        blocks = kept_blocks(target, SKIPS)
        found, tree = draft(Models(target=target, draft=blocks), prefix, tokens)
        swapped = dict_to_module(target, {**module_to_dict(target), **module_to_dict(blocks)})
        for mine, theirs in zip(found, oracle(silenced(swapped, SKIPS), prefix, tree), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)

    def test_every_draft_step_is_what_training_computes(self, target):
        """In two rows whose roots stand at different places.

        With a root at r, a chain no longer than r is a block of the mask: that from r on of those of r tokens.
        """
        length, blocks = 17, kept_blocks(target, SKIPS)
        weights = Models(target=target, draft=blocks)
        text = jax.random.randint(jax.random.key(3), (2, length), 0, VOCAB)
        segment = jnp.zeros((2, length), jnp.int32)
        verified = jax.jit(packed.read)(target, text, segment).nodes
        predict = jax.jit(training.predict)
        cache = read(target, text.tolist(), rows=32).cache
        for roots in ([6, 4], [8, 13]):
            prefix = Prefix(token=text, length=jnp.array(roots) + 1, cache=cache)
            found = chain(LayerSkip(), weights, LayerSkip().init(weights, 2, 32), prefix, steps=3)
            for row, root in enumerate(roots):
                trained = predict(blocks, target, text, verified, rounds_of(segment, jnp.asarray(root), longest=length))
                np.testing.assert_allclose(found[row], trained[row, root : root + 4], atol=2e-5)

    def test_on_disk(self, target, tmp_path: Path):
        blocks, narrow = kept_blocks(target, SKIPS), lambda module: jax.tree.map(lambda x: x.astype("bfloat16"), module)
        shape = HeadShape(target.config, {**layers_of(SKIPS), "trained": True})
        config = CheckpointConfig("llama", target.config, "float32", "float32", "jaxspec")
        heads.write_head(tmp_path, head_config(LayerSkip(), shape, config, "bfloat16"), blocks)
        found = restore_head(Checkpoint(tmp_path, config, narrow(target), None, ()), LayerSkip(), tmp_path)
        assert isinstance(found, KeptBlocks) and found.skips == SKIPS
        assert jax.tree.all(jax.tree.map(np.array_equal, found, narrow(blocks)))
        for line in ("trained: yes", "dtype: bfloat16", "layers.0.attention.q.kernel"):
            assert line in inspect.describe(tmp_path)


@pytest.mark.parametrize("builder", ["chain,length=3", "static,paths=0:1:00:01:10:000"])
def test_with_nothing_left_out_every_draft_is_accepted(builder: str):
    """Caches and positions are right, over rounds."""
    target = models(VOCAB).target
    nothing = skip(target.config.num_layers, [], [])
    spec = speculation(parse_method(f"layer-skip+{builder}"), greedy=True)
    _, history = run(spec, Models(target=target, draft={LayerSkip: nothing}), requests(PROMPTS, 17))
    assert (history.accepted == history.levels).all() and (history.committed.sum(axis=1) == 16).all()
    assert (history.committed.max(axis=1) == 4).all()


def test_hidden_states_are_as_wide_as_the_targets(target):
    assert draft_width(LayerSkip(), Models(target=target, draft=SKIPS)) == target.config.hidden_size


class TestFile:
    @pytest.fixture
    def model(self, target, tmp_path: Path) -> Checkpoint:
        """The target, and a set for it in the folder that it is said to be in."""
        config = CheckpointConfig("llama", target.config, "bfloat16", "bfloat16", "jaxspec")
        shape = HeadShape(target.config, layers_of(SKIPS))
        heads.write_config(tmp_path, head_config(LayerSkip(), shape, config))
        return Checkpoint(tmp_path, config, target, None, ())

    def test_says_which_layers(self, model):
        settings = json.loads((model.path / "config.json").read_text())["settings"]
        assert settings == {"attention": [1, 2], "mlp": [0, 2]}
        assert restore_head(model, LayerSkip(), model.path) == SKIPS
        said = inspect.describe(model.path)
        for line in ("for the drafter layer-skip", "attention: 1, 2", "mlp: 0, 2"):
            assert line in said

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"num_layers": LAYERS + 1}, "is for a target of 3 layers, and this one has 4"),
            ({"vocab_size": 9}, "is for a target of vocabulary 50, and this target's is 9"),
        ],
    )
    def test_of_another_target(self, change: dict, says: str, model):
        config = dataclasses.replace(model.config, model=dataclasses.replace(model.config.model, **change))
        with pytest.raises(CheckpointError, match=says):
            restore_head(dataclasses.replace(model, config=config), LayerSkip(), model.path)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"attention": [3], "mlp": []},
            {"attention": [True], "mlp": []},
            {"mlp": []},
            {"attention": 1, "mlp": []},
            {"attention": [], "mlp": [], "trained": 1},
            {"attention": [], "mlp": [], "weights": True},
        ],
    )
    def test_with_layers_that_are_not_there(self, wrong: dict, model):
        file = model.path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "settings": wrong}))
        with pytest.raises(
            CheckpointError, match=r"must have the settings `attention` and `mlp`, lists .* from 0 to 2"
        ):
            restore_head(model, LayerSkip(), model.path)
