"""Early exit: its drafts, and that no part of the target is computed twice."""

import dataclasses
from collections import Counter
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.decoding import loop
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.tree import compaction, subtree
from jaxspec.drafters.early_exit import EarlyExit, EarlyExitHead, default_first
from jaxspec.methods.method import parse_method
from jaxspec.model import llama
from jaxspec.train.methods.early_exit import sources_of
from jaxspec.train.run.heads import started
from tests.lossless.harness import begun, models, requests, run, speculation

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 4, 5]]


@pytest.mark.parametrize(("num_layers", "first"), [(2, 1), (16, 1), (40, 3), (80, 5)])
def test_default_first(num_layers: int, first: int):
    """40 and 80 are the paper's 13B and 70B."""
    assert default_first(num_layers) == first


@pytest.mark.parametrize(
    ("num_layers", "first", "builder"), [(3, 1, "chain,length=3"), (3, 2, "static,paths=0:1:00:01:10:000")]
)
def test_an_exit_through_all_other_layers_is_the_target(num_layers: int, first: int, builder: str):
    """With the target's own other layers as exit layers, every draft is accepted: caches and positions are right."""
    target = models(20, num_layers).target
    config = dataclasses.replace(target.config, num_layers=num_layers - first)
    blank = EarlyExitHead(config, rngs=nnx.Rngs(0), first=first)
    head = started(blank, target, sources_of(blank, target.config))
    spec = speculation(parse_method(f"early-exit+{builder}"), greedy=True)
    _, history = run(spec, Models(target=target, draft={EarlyExit: head}), requests(PROMPTS, 17))
    assert (history.accepted == history.levels).all() and (history.committed.sum(axis=1) == 16).all()
    assert (history.committed.max(axis=1) == 4).all()


def test_all_nodes_after_the_root_may_be_leaves():
    """Verification finishes every leaf that drafting left, here all three children of the root. Of a vocabulary of four
    tokens each of them is often the accepted one."""
    target, asked = models(4), requests([[1, 2, 3], [0, 1, 2, 3, 2, 3, 0, 1], [1], [2, 2]], 60)
    spec = lambda name: speculation(parse_method(name), greedy=True)
    texts, history = run(spec("early-exit+static,paths=0:1:2"), target, asked)
    assert texts == run(spec("plain"), target, asked)[0]
    assert history.accepted.sum() > 50


class Passes:
    """Counts how often each slot of the grown tree passes each layer of the target."""

    def __init__(self, target: llama.Llama):
        self.number = {id(layer.mlp): i for i, layer in enumerate(target.layers)}
        self.found: Counter = Counter()
        self.slots: np.ndarray | None = None  # of the nodes of a verified tree in the grown one

    def layer(self, layer, x, angles, attend):
        if (i := self.number.get(id(layer.mlp))) is not None:
            all_slots, slots = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2]), attend.args[0].slots
            jax.debug.callback(partial(self.count, i), all_slots if slots is None else slots)
        return self.original(layer, x, angles, attend)

    def count(self, i: int, at: np.ndarray) -> None:
        for row, node in np.ndindex(at.shape):
            where = int(at[row, node])
            if self.slots is not None:
                where = int(self.slots[row, where]) if where < self.slots.shape[1] else -1
            self.found[i, row, where] += 1

    original = staticmethod(llama.decoder_layer)


@pytest.mark.parametrize(
    ("builder", "exit_layer"),
    [
        pytest.param("chain,length=3", True, marks=pytest.mark.soak),
        ("static,paths=0:1:2:00:01:10:000", False),
        ("eagle2,total=6,depth=3,width=2", True),
    ],
)
def test_every_live_node_passes_every_layer_once(builder: str, exit_layer: bool):
    target = models(20, num_layers=3).target
    config = dataclasses.replace(target.config, num_layers=1)
    head = EarlyExitHead(config, rngs=nnx.Rngs(1), first=2, exit_layer=exit_layer)
    weights = Models(target=target, draft=head)
    spec = speculation(parse_method(f"early-exit+{builder}"), greedy=True)
    state = begun(spec, weights, requests(PROMPTS, 8), (), 64)
    passes = Passes(target)
    prefix = state.prefix
    with mock.patch.object(llama, "decoder_layer", passes.layer):
        # Compiled with the weights as constants: a layer is known by its identity.
        grown, drafted = jax.jit(lambda: loop.draft(spec, weights, state, state.keys))()
        selection = spec.builder.prune(grown) or compaction(grown)
        tree, slots = subtree(grown, selection), selection.node
        jax.effects_barrier()
        passes.slots = np.asarray(slots)
        leaves = 1 if spec.builder.is_chain else tree.live.shape[1] - 1
        verify = lambda: spec.drafter.target_forward(weights, drafted.drafter, prefix, tree, slots, leaves)
        jax.block_until_ready(jax.jit(verify)())
        jax.effects_barrier()
    live = np.asarray(tree.live)
    assert live.sum() > live.shape[0] * 2
    counts = [passes.found[i, row, int(passes.slots[row, n])] for i in range(3) for row, n in np.argwhere(live)]
    assert counts == [1] * len(counts)
