"""The target against transformers: every family, prefill, cached decoding, trees and taps, within 1e-4 in float32."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given

from jaxspec.checkpoint import parameters
from jaxspec.convert.llama import convert
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.llama import Llama, forward
from tests import hf_models

TOLERANCE = 1e-4
LAYERS, BATCH, LENGTH, CHUNK, NODES, ROWS = 2, 3, 40, 8, 8, 64
TAPS = (1, 0)  # every layer, and not in order
START = np.zeros(BATCH, int)


@dataclasses.dataclass(frozen=True)
class Pair:
    """The same weights on both sides, and what transformers computes for one batch of random tokens."""

    model: Llama
    oracle: Callable[[np.ndarray], np.ndarray]  # logits of other sequences
    tokens: np.ndarray
    logits: np.ndarray
    hidden_states: list[np.ndarray]

    def empty(self, batch: int = BATCH) -> tuple[kv.KV, ...]:
        # On a device by name, as the weights are: else what `read` returns is another kind of argument than this.
        return jax.device_put(kv.allocate(self.model.config, batch, ROWS, jnp.dtype("float32")), jax.devices()[0])

    def plain(self, sequences: list[list[int]]) -> list[np.ndarray]:
        """What transformers computes for sequences of several lengths."""
        padded = np.array([sequence + [0] * (LENGTH - len(sequence)) for sequence in sequences])
        return [logits[: len(sequence)] for logits, sequence in zip(self.oracle(padded), sequences, strict=True)]


@pytest.fixture(scope="module", params=hf_models.FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp(request.param)
    # Dynamic scaling is the plain rotation up to the original length, and a window has no effect up to its own.
    limits = {"dynamic-rope": "max_position_embeddings", "mistral": "sliding_window"}
    longest: dict[str, Any] = {limits[request.param]: LENGTH} if request.param in limits else {}
    theirs = hf_models.make(request.param, folder / "theirs", num_hidden_layers=LAYERS, **longest)
    convert(folder / "theirs", folder / "ours")
    model = parameters.restore(folder / "ours", jnp.float32)

    @torch.inference_mode()
    def run(tokens: np.ndarray):
        return theirs(torch.from_numpy(tokens), output_hidden_states=True)

    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (BATCH, LENGTH))
    output = run(tokens)
    hidden_states = [hidden.numpy() for hidden in output.hidden_states]
    return Pair(model, lambda tokens: run(tokens).logits.numpy(), tokens, output.logits.numpy(), hidden_states)


close = partial(np.testing.assert_allclose, rtol=0, atol=TOLERANCE)


@jax.jit
def read(model: Llama, tokens: jax.Array, cache: tuple[kv.KV, ...], cached: jax.Array):
    """A causal block after the committed rows: its logits, all of the output, and the cache with the block in it."""
    batch, width = tokens.shape
    causal = causal_mask(batch, width)
    out = forward(model, tokens, cached[:, None] + jnp.arange(width), causal, cache, cached, taps=TAPS)
    return model.logits(out.hidden), out, kv.append(cache, out.nodes, cached)


@jax.jit
def verify(model: Llama, tokens, depth, ancestors, cache, cached):
    """All nodes of a tree at once."""
    out = forward(model, tokens, cached[:, None] + depth, ancestors, cache, cached)
    return model.logits(out.hidden), out.nodes


@jax.jit
def expand(model: Llama, tokens, depth, ancestors, cache, cached, nodes, slots):
    """Some nodes of a tree, after others."""
    some = lambda values: jax.vmap(lambda row, at: row[at])(values, slots)
    positions = cached[:, None] + some(depth)
    out = forward(model, some(tokens), positions, some(ancestors), cache, cached, nodes=nodes, slots=slots)
    return model.logits(out.hidden), out.nodes


@jax.jit
def accept(cache, nodes, path, cached):
    return kv.append(cache, tuple(kv.gather_path(layer, path) for layer in nodes), cached)


def test_prefill_in_one_forward(pair: Pair):
    logits, out, _ = read(pair.model, pair.tokens, pair.empty(), START)
    close(logits, pair.logits)
    close(out.hidden, pair.hidden_states[-1])
    for layer, tap in zip(TAPS, out.taps, strict=True):
        close(tap, pair.hidden_states[layer])


def test_prefill_in_ragged_chunks(pair: Pair):
    """Rows advance by different counts, so that each has another length at every chunk."""
    cache, cached = pair.empty(), START
    pace = np.array([8, 5, 3])
    padded = np.pad(pair.tokens, [(0, 0), (0, CHUNK)])
    while (cached < LENGTH).any():
        count = np.minimum(pace, LENGTH - cached)
        block = np.stack([row[at : at + CHUNK] for row, at in zip(padded, cached, strict=True)])
        logits, _, cache = read(pair.model, block, cache, cached)
        for b, (at, n) in enumerate(zip(cached, count, strict=True)):
            close(np.asarray(logits)[b, :n], pair.logits[b, at : at + n])
        cached = cached + count


def test_decoding_token_by_token(pair: Pair):
    cache = pair.empty(batch=1)
    for at in range(LENGTH):
        logits, _, cache = read(pair.model, pair.tokens[:1, at : at + 1], cache, np.array([at]))
        close(logits, pair.logits[:1, at : at + 1])


@dataclasses.dataclass(frozen=True)
class Tree:
    """A random tree after a prefix of random length."""

    prefix: int
    parents: list[int]  # of nodes 1, 2, …
    tokens: np.ndarray

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to `node`."""
        return [*(self.path(self.parents[node - 1]) if node else []), node]

    @property
    def leaves(self) -> list[int]:
        return [node for node in range(NODES) if node not in self.parents]

    @property
    def depth(self) -> np.ndarray:
        return np.array([len(self.path(node)) - 1 for node in range(NODES)])

    @property
    def ancestors(self) -> np.ndarray:
        return np.array([[above in self.path(node) for above in range(NODES)] for node in range(NODES)])


trees = st.builds(
    Tree,
    prefix=st.integers(0, LENGTH - NODES - 1),
    parents=st.tuples(*(st.integers(0, node - 1) for node in range(1, NODES))).map(list),
    tokens=st.lists(st.integers(0, 95), min_size=NODES, max_size=NODES).map(np.array),
)


@given(rows=st.lists(trees, min_size=BATCH, max_size=BATCH), data=st.data())
def test_every_path_of_a_tree_is_a_plain_sequence(pair: Pair, rows: list[Tree], data: st.DataObject):
    cached = np.array([tree.prefix for tree in rows])
    _, _, cache = read(pair.model, pair.tokens, pair.empty(), START)
    tree = [np.stack([getattr(row, name) for row in rows]) for name in ("tokens", "depth", "ancestors")]
    at_once, nodes = verify(pair.model, *tree, cache, cached)

    grown, in_steps = jax.tree.map(lambda x: np.full_like(x, 7.0), nodes), []  # what an earlier tree left there
    for step in np.split(np.arange(NODES), 4):
        logits, grown = expand(pair.model, *tree, cache, cached, grown, np.broadcast_to(step, (BATCH, len(step))))
        in_steps.append(logits)

    paths = [(b, row.path(leaf)) for b, row in enumerate(rows) for leaf in row.leaves]
    sequences = [[*pair.tokens[b, : cached[b]], *rows[b].tokens[path]] for b, path in paths]
    at_once, in_steps = np.asarray(at_once), np.concatenate(in_steps, axis=1)
    for (b, path), expected in zip(paths, pair.plain(sequences), strict=True):
        close(at_once[b, path], expected[-len(path) :])
        close(in_steps[b, path], expected[-len(path) :])

    # Whichever path is accepted, decoding goes on as if it had been read plainly.
    accepted = [row.path(data.draw(st.sampled_from(range(NODES)), label="last accepted node")) for row in rows]
    padded = np.array([path + path[-1:] * (NODES - len(path)) for path in accepted])
    cache = accept(cache, nodes, padded, cached)
    length = cached + [len(path) for path in accepted]
    logits, _, _ = read(pair.model, pair.tokens[:, :CHUNK], cache, length)
    sequences = [
        [*before[:count], *row.tokens[path], before[0]]
        for before, count, row, path in zip(pair.tokens, cached, rows, accepted, strict=True)
    ]
    for found, expected in zip(np.asarray(logits), pair.plain(sequences), strict=True):
        close(found[0], expected[-1])
