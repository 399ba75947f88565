"""DFlash against NumPy written from its specification: context, keys, the block, and what its levels say."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint import heads, loading
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding import tree as trees
from jaxspec.decoding.drafter import Committed, Drafts, HeadShape, Models, Prefix
from jaxspec.decoding.tree import Frontier
from jaxspec.drafters import draft_vocabulary
from jaxspec.drafters.dflash import Dflash, DflashState, official_taps
from jaxspec.engine.engine import Engine
from jaxspec.engine.head_weights import head_config
from jaxspec.methods.method import default_method, parse_method
from jaxspec.rules import GumbelCoupling
from tests.evaluate import tiny
from tests.lossless.harness import models, requests, run, speculation

VOCAB, LAYERS, BLOCK, TAPS, ROWS = 50, 2, 4, (0, 1), 32
DRAFTED = list(range(0, VOCAB, 3))
OBSERVE, ROOT = jax.jit(Dflash().observe), jax.jit(lambda drafter, *rest: drafter.root(*rest), static_argnums=0)


@pytest.fixture(autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module", params=["the target's", "its own", "with a Markov term", "of DSpark"])
def weights(request: pytest.FixtureRequest) -> Models:
    """A target and a head of random weights, whose heads of attention are not the target's.

    Its embedding and LM head are the target's, or its own, and then it cannot draft every token. One has a Markov term.
    That of DSpark has also anchor rows, a causal layer with a sliding window, and a confidence head.
    """
    target = models(VOCAB).target
    shape = Dflash().head_for(target.config, layers=LAYERS, block=BLOCK, taps=TAPS, mask_token=7)
    settings: dict[str, Any] = dict(shape.settings)
    if request.param == "its own":
        mask = draft_vocabulary.to_mask(DRAFTED, VOCAB)
        settings |= {"own_embedding": True, "own_head": True, "draft_vocabulary": mask}
    if request.param == "with a Markov term":
        settings |= {"markov_rank": 3}
    if request.param == "of DSpark":
        settings |= {"markov_rank": 3, "anchor": True, "causal": [True, False], "windows": [5, 0]}
        settings |= {"confidence": "markov", "temperatures": [1.0, 2.0]}
    model = dataclasses.replace(shape.model, num_heads=4, num_kv_heads=2)
    head = Dflash().build_head(HeadShape(model, settings), nnx.Rngs(1))
    keys = iter(jax.random.split(jax.random.key(2), 100))
    return Models(target=target, draft=jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape), head))


class Oracle:
    """The head in float64: it knows no cache, and computes a round from all taps of the verified tokens."""

    def __init__(self, weights: Models):
        named = lambda module: {name: np.asarray(x, np.float64) for name, x in module_to_dict(module).items()}
        self.head, self.target, self.config = named(weights.draft), named(weights.target), weights.draft.config
        self.options = weights.draft.options

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps) * self.head[name]

    def rotated(self, x: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Heads [T K H] at these positions: each pair (i, i + H/2) turned by position / theta^(2i/H)."""
        half = x.shape[-1] // 2
        angle = at[:, None, None] / self.config.rope.theta ** (np.arange(half) / half)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def split(self, x: np.ndarray, part: str) -> np.ndarray:
        return (x @ self.head[f"{part}.kernel"]).reshape(len(x), -1, self.config.head_dim)

    def context(self, taps: np.ndarray) -> np.ndarray:
        """C [T D] of taps [T m D]."""
        return self.norm(taps.reshape(len(taps), -1) @ self.head["fc.kernel"], "context_norm")

    def keys(self, layer: int, rows: np.ndarray, at: np.ndarray) -> np.ndarray:
        """A layer's keys [T K H] of rows, normed and rotated."""
        part = f"layers.{layer}.attention"
        return self.rotated(self.norm(self.split(rows, f"{part}.k"), f"{part}.k_norm"), at)

    def seen(self, layer: int, at: np.ndarray, known: int) -> np.ndarray:
        """Which of the positions 0, 1, … the rows of a block at these positions see after `known` tokens."""
        row, other = at[:, None], np.arange(known + len(at))
        window = (self.options.windows or [0] * LAYERS)[layer]
        seen = (row >= other) | (other >= known) & (not any(self.options.causal[layer : layer + 1]))
        return seen & ((row - other < window) | (window == 0))

    def confidence(self, hidden: np.ndarray, token: np.ndarray, level: int) -> np.ndarray:
        """The probability that the draft after these tokens is accepted."""
        read = np.concatenate([hidden, self.head["markov.embedding"][token]], axis=-1)
        odds = read @ self.head["confidence.proj.kernel"][:, 0] + self.head["confidence.proj.bias"]
        return 1 / (1 + np.exp(-odds / self.options.temperatures[min(level, 1)]))

    def block(self, taps: np.ndarray, root: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """What is drafted after verified tokens with these taps [T m D] and a root: hidden states and logits of the
        levels."""
        context, known = self.context(taps), np.arange(len(taps))
        at = len(taps) + np.arange(width)
        table = self.head.get("embedding", self.target["embedding"])
        x = table[[root] + [self.options.mask_token] * (width - 1)]
        for i in range(LAYERS):
            name, mlp = f"layers.{i}.attention", f"layers.{i}.mlp"
            read = self.norm(x, f"layers.{i}.attention_norm")
            query = self.rotated(self.norm(self.split(read, f"{name}.q"), f"{name}.q_norm"), at)
            key = np.concatenate([self.keys(i, context, known), self.keys(i, read, at)])
            value = self.split(np.concatenate([context, read]), f"{name}.v")
            shared = query.shape[1] // key.shape[1]
            key, value = (np.repeat(each, shared, axis=1) for each in (key, value))
            scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(self.config.head_dim)
            scores = np.where(self.seen(i, at, len(taps)), scores, -np.inf)
            share = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = np.einsum("hqk,khd->qhd", share / share.sum(-1, keepdims=True), value)
            x = x + mixed.reshape(width, -1) @ self.head[f"{name}.o.kernel"]
            read = self.norm(x, f"layers.{i}.mlp_norm")
            gate = read @ self.head[f"{mlp}.gate.kernel"]
            x = (
                x
                + gate / (1 + np.exp(-gate)) * (read @ self.head[f"{mlp}.up.kernel"]) @ self.head[f"{mlp}.down.kernel"]
            )
        hidden = self.norm(x, "norm")[0 if self.options.anchor else 1 :]
        return hidden, hidden @ self.head.get("head.kernel", self.target["head.kernel"])


class Text:
    """Two texts as the target verifies them: their tokens, and taps of every token."""

    def __init__(self, seed: int = 3, length: int = 24):
        rng = np.random.default_rng(seed)
        self.tokens = rng.integers(0, VOCAB, (2, length))
        self.taps = rng.standard_normal((2, length, len(TAPS), 16)).astype(np.float32)

    def observe(self, weights: Models, state: DflashState, first: list[int], count: list[int]) -> DflashState:
        """`count` tokens of each row from `first` on became certain; the rest of the block is something else."""
        width = max(*count, 1) + 2
        at = np.minimum(np.array(first)[:, None] + np.arange(width), self.tokens.shape[1] - 1)
        valid = np.arange(width) < np.array(count)[:, None]
        row = np.arange(2)[:, None]
        taps = np.where(valid[..., None, None], self.taps[row, at], 9.0)
        token = jnp.asarray(self.tokens[row, at])
        committed = Committed(
            start=jnp.array([f + (c == 0) for f, c in zip(first, count, strict=True)]),
            count=jnp.array(count),
            token=token,
            next_token=token,
            hidden=jnp.full((2, width, 16), 5.0),
            taps=tuple(jnp.asarray(taps[:, :, i]) for i in range(len(TAPS))),
        )
        return OBSERVE(weights, state, committed)

    def draft(self, weights: Models, state: DflashState, known: list[int], block: int) -> tuple[Drafts, DflashState]:
        """The drafts of level 1, where `known` tokens of each row are verified and the next is the root."""
        prefix = Prefix(token=jnp.asarray(self.tokens), length=jnp.array(known) + 1, cache=())
        tree = trees.init_tree(jnp.asarray(self.tokens[[0, 1], known]), 4, None)
        return ROOT(Dflash(block=block + weights.draft.options.anchor), weights, state, prefix, tree)


def test_three_rounds_are_the_specifications(weights: Models):
    """Prefill in two chunks, of rows of unequal lengths; then rounds that accept no draft in one row and all in the
    other, and the reverse. Each time: the context, the keys of every layer, what each level says."""
    oracle, text = Oracle(weights), Text()
    state, known = Dflash().init(weights, 2, ROWS), [0, 0]
    for count in ([4, 3], [2, 0], [1, BLOCK], [BLOCK, 1]):
        state = text.observe(weights, state, known, count)
        known = [k + c for k, c in zip(known, count, strict=True)]
        drafts, drafted = text.draft(weights, state, known, BLOCK)
        assert drafted.logits is not None and drafted.hidden is not None and drafts.hidden is not None
        for row, length in enumerate(known):
            taps = text.taps[row, :length].astype(np.float64)
            fused = weights.draft.fuse(tuple(jnp.asarray(text.taps[row : row + 1, :length, i]) for i in range(2)))
            np.testing.assert_allclose(fused[0], oracle.context(taps), atol=2e-5)
            for layer, cache in enumerate(state.cache):
                held = cache.k.shape[-1]  # with a window only the last positions
                assert held == (weights.draft.options.windows or [0] * LAYERS)[layer] or held == ROWS
                kept = np.arange(max(0, length - held), length)
                ours = cache.k[row][:, :, kept % held].transpose(2, 0, 1)
                wanted = oracle.keys(layer, oracle.context(taps), np.arange(length))[kept]
                np.testing.assert_allclose(ours, wanted, atol=2e-5)
            hidden, logits = oracle.block(taps, text.tokens[row, length], BLOCK)
            np.testing.assert_allclose(drafted.hidden[row], hidden, atol=1e-4)
            np.testing.assert_allclose(drafted.logits[row], logits, atol=2e-4)
        for ours, theirs in zip(jax.tree.leaves(drafted.cache), jax.tree.leaves(state.cache), strict=True):
            np.testing.assert_array_equal(ours, theirs)  # drafting leaves nothing in the context


@pytest.mark.parametrize("block", [2, 3, 16])
def test_shorter_blocks(block: int, weights: Models):
    """Fewer mask tokens; more than in training there never are."""
    oracle, text, known = Oracle(weights), Text(), [5, 2]
    state = text.observe(weights, Dflash().init(weights, 2, ROWS), [0, 0], known)
    _, drafted = text.draft(weights, state, known, block)
    assert drafted.logits is not None
    for row, length in enumerate(known):
        wanted = oracle.block(text.taps[row, :length].astype(np.float64), text.tokens[row, length], min(block, BLOCK))
        np.testing.assert_allclose(drafted.logits[row], wanted[1], atol=2e-4)


def test_a_level_costs_no_pass_and_says_the_same_after_every_node_but_for_the_markov_term(weights: Models):
    text, known, drafter = Text(), [5, 2], Dflash()
    state = text.observe(weights, drafter.init(weights, 2, ROWS), [0, 0], known)
    drafts, state = text.draft(weights, state, known, BLOCK)
    assert state.logits is not None and state.hidden is not None
    prefix = Prefix(token=jnp.asarray(text.tokens), length=jnp.array(known) + 1, cache=())
    token = np.array([[4, 8, 15, 16, 23], [42, 4, 8, 15, 16]])
    tree = dataclasses.replace(trees.init_tree(jnp.zeros(2, jnp.int32), 5, None), token=jnp.asarray(token))
    node = np.array([[1, 2], [3, 0]])

    def expand(level: Any) -> Drafts:
        frontier = Frontier(node=jnp.asarray(node), live=jnp.asarray(node > 0), level=level)
        return drafter.expand(weights, state, prefix, tree, frontier)[0]

    own, params = weights.draft.lm_head is not None, Oracle(weights).head
    corrected = "markov.embedding" in params
    for level, found in enumerate([drafts, *(expand(jnp.asarray(level)) for level in range(1, 5))]):
        width = 2 if corrected and level else 1
        assert found.logits.shape == (2, width, len(DRAFTED) if own else VOCAB)
        assert found.hidden is not None and found.hidden.shape[1] == width
        assert (found.token is not None) == own
        if found.token is not None:
            assert found.token[0, 0].tolist() == DRAFTED
        if level >= weights.draft.options.levels:
            assert (np.asarray(found.logits) == -np.inf).all(), "the block has no such level"
            continue
        wanted = np.asarray(state.logits[:, level])[:, None]
        if corrected:
            before = np.take_along_axis(token, node, 1) if level else text.tokens[[0, 1], known][:, None]
            wanted = wanted + params["markov.embedding"][before] @ params["markov.head.kernel"]
        np.testing.assert_allclose(found.logits, jax.nn.log_softmax(wanted) if own else wanted, atol=1e-4)
        if (estimate := found.log_accept) is not None:
            hidden = np.asarray(state.hidden[:, level], np.float64)[:, None].repeat(width, 1)
            before = np.take_along_axis(token, node, 1) if level else text.tokens[[0, 1], known][:, None]
            np.testing.assert_allclose(np.exp(estimate), Oracle(weights).confidence(hidden, before, level), atol=1e-5)
        assert (estimate is not None) == (weights.draft.confidence is not None)
        for each in range(width):
            np.testing.assert_array_equal(found.hidden[:, each], state.hidden[:, level])
    # No pass: the only products are those of the correction, with the LM head of its rank, and of the confidence head.
    products = str(jax.make_jaxpr(expand)(jnp.asarray(1))).count("dot_general")
    assert products == int(corrected) + int(weights.draft.confidence is not None)


def test_rows_do_not_see_each_other(weights: Models):
    text, known = Text(), [5, 2]
    state = text.observe(weights, Dflash().init(weights, 2, ROWS), [0, 0], known)
    alone, _ = text.draft(weights, state, known, BLOCK)
    other = Text(seed=4)
    other.tokens[0], other.taps[0] = text.tokens[0], text.taps[0]
    state = other.observe(weights, Dflash().init(weights, 2, ROWS), [0, 0], [5, 9])
    beside, _ = other.draft(weights, state, [5, 9], BLOCK)
    np.testing.assert_array_equal(alone.logits[0], beside.logits[0])
    assert (np.asarray(alone.logits[1]) != np.asarray(beside.logits[1])).any()


@pytest.mark.soak
def test_a_tree_of_width_one_is_the_chain():
    target, prompts = models(23), [[1, 2, 3], [7] * 9]
    methods = ("dflash,block=4", "dflash,block=4+eagle2,total=4,depth=3,width=1")
    chain, tree = (run(speculation(parse_method(each), True), target, requests(prompts, 30)) for each in methods)
    assert chain[0] == tree[0]
    np.testing.assert_array_equal(chain[1].accepted, tree[1].accepted)
    assert chain[1].accepted.sum() > 0


@pytest.mark.parametrize(
    ("layers", "count", "taps"),
    [
        (32, 5, (2, 9, 16, 23, 30)),
        (36, 5, (2, 10, 18, 26, 34)),
        (8, 2, (2, 6)),
        (32, 1, (17,)),
        (15, 3, (2, 7, 13)),  # 6.5 is rounded to 6, the even one
    ],
)
def test_official_taps(layers: int, count: int, taps: tuple[int, ...]):
    assert official_taps(layers, count) == taps


def test_methods():
    assert str(parse_method("dflash")) == "dflash,block=16+chain,length=15+fixed"
    assert str(parse_method("dflash,block=8+chain")) == "dflash,block=8+chain,length=7+fixed"
    assert str(parse_method("dflash+chain,length=3")) == "dflash,block=16+chain,length=3+fixed"
    assert parse_method("dflash+chain+threshold").builder.depth == 15
    assert isinstance(parse_method("dflash").rule(greedy=False), GumbelCoupling)
    with pytest.raises(ValueError, match="block must be at least 2, not 1"):
        parse_method("dflash,block=1")
    assert default_method(["eagle", "eagle3", "dflash"]).drafter == Dflash()
    assert default_method(["layer-skip", "draft-model"]).head == "draft-model"
    assert default_method(["eagle@b", "eagle@a", "layer-skip"]) == parse_method("eagle@a")
    assert default_method(["eagle@a", "eagle"]) == parse_method("eagle")


def test_a_trained_block_bounds_what_is_drafted(tmp_path: Path):
    """The chain is as long as the head can draft, unless it is told to be shorter; the engine says which.

    With history, copies have the length that is given; the default is the block's.
    """
    path = tiny.checkpoint(tmp_path / "ckpt")
    config, folder = loading.load(path).config, path / "heads" / "dflash"
    shape = Dflash().head_for(config.model, layers=1, block=6)
    folder.mkdir(parents=True)
    heads.write_head(folder, head_config(Dflash(), shape, config, "float32"), Dflash().build_head(shape, nnx.Rngs(0)))
    model = loading.load(path)
    expected = {
        "dflash": "dflash,block=6+chain,length=5+fixed",
        "dflash,block=3": "dflash,block=3+chain,length=2+fixed",
        "dflash+chain,length=2": "dflash,block=6+chain,length=2+fixed",
        "dflash,block=6+chain,length=9": "dflash,block=6+chain,length=5+fixed",
        "dflash,history=4": "dflash,block=6,history=4+chain,length=5+fixed",
        "dflash,history=4+chain,length=9": "dflash,block=6,history=4+chain,length=9+fixed",
        "dflash,block=6,history=4+chain,length=9": "dflash,block=6,history=4+chain,length=9+fixed",
        "dflash,block=6,history=4+chain,length=5": "dflash,block=6,history=4+chain,length=5+fixed",
        "dflash,history=4+chain,length=2": "dflash,block=6,history=4+chain,length=2+fixed",
    }
    assert {name: str(Engine(model, name).method) for name in expected} == expected
    assert str(Engine(model).method) == expected["dflash"]


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        ({}, {"taps": [0, 99]}, "reads the input of layer 99 .* this target has 2"),
        ({}, {"mask_token": VOCAB}, "mask token 50, and the target's ids go from 0 to 49"),
        ({}, {"block": 1}, "block must be at least 2"),
        ({}, {"taps": []}, "at least one layer"),
        ({}, {"markov_rank": -1}, "markov_rank must be"),
        ({"qk_norm": False}, {}, "no norms of queries and keys"),
    ],
)
def test_heads_that_do_not_fit_are_refused(model: dict[str, Any], settings: dict[str, Any], words: str):
    target = models(VOCAB).target.config
    shape = Dflash().head_for(target)
    Dflash().check_head(shape, target)
    changed = HeadShape(dataclasses.replace(shape.model, **model), {**shape.settings, **settings})
    with pytest.raises(ValueError, match=words):
        Dflash().check_head(changed, target)
