"""Our drafter against a rendering of EAGLE's draft model in NumPy, which reads the published tensors themselves.

The rendering knows nothing of caches or trees: each time it runs the whole sequence of pairs from the start.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoint import loading
from jaxspec.convert import heads, llama
from jaxspec.decoding import tree
from jaxspec.decoding.drafter import Committed, Models, Prefix
from jaxspec.drafters.eagle import Eagle
from jaxspec.drafters.eagle_state import PairState
from jaxspec.engine.head_weights import restore_head
from jaxspec.model import kv_cache as kv
from jaxspec.model.llama import forward
from tests import hf_models
from tests.convert.commands import tensors
from tests.convert.published_heads import EAGLE, HEADS, WIDTH, eagle, write

LENGTH, STEPS, CHUNK, ROWS = 13, 4, 16, 32
FORWARD, OBSERVE, ROOT, EXPAND = map(jax.jit, (forward, Eagle().observe, Eagle().root, Eagle().expand))
HEAD_DIM, EPSILON, THETA = WIDTH // HEADS, EAGLE["rms_norm_eps"], 10000.0


def linear(x: np.ndarray, found: dict[str, np.ndarray], name: str) -> np.ndarray:
    return x @ found[f"{name}.weight"].T + found.get(f"{name}.bias", np.float32(0))


def rotated(x: np.ndarray) -> np.ndarray:
    """Queries or keys [positions, heads, HEAD_DIM], each turned by its own position."""
    inverse = THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = np.arange(len(x))[:, None, None] * np.concatenate([inverse, inverse])
    half = np.concatenate([-x[..., HEAD_DIM // 2 :], x[..., : HEAD_DIM // 2]], axis=-1)
    return (x * np.cos(angle) + half * np.sin(angle)).astype(np.float32)


def attention(x: np.ndarray, found: dict[str, np.ndarray], window: int = 10**6) -> np.ndarray:
    """Causal self-attention over all the pairs; each key head is repeated for its group of query heads.

    Queries and keys go through norms where the head has any. A query sees `window` positions, its own included.
    """

    def part(p: str) -> np.ndarray:
        split = linear(x, found, f"layers.0.self_attn.{p}_proj").reshape(len(x), -1, HEAD_DIM)
        if (scale := found.get(f"layers.0.self_attn.{p}_norm.weight")) is None:
            return split
        return split / np.sqrt((split * split).mean(-1, keepdims=True) + np.float32(EPSILON)) * scale

    query, key, value = rotated(part("q")), rotated(part("k")), part("v")
    key, value = (np.repeat(y, query.shape[1] // y.shape[1], axis=1) for y in (key, value))
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(np.float32(HEAD_DIM))
    back = np.arange(len(x))[:, None] - np.arange(len(x))
    scores = np.where((back >= 0) & (back < window), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), value)
    return linear(mixed.reshape(len(x), -1), found, "layers.0.self_attn.o_proj")


def predicted_features(found: dict[str, np.ndarray], tokens: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Feature i of the result is the prediction for token i + 1, made of feature i and token i + 1."""
    pairs = np.concatenate([found["embed_tokens.weight"][tokens[1 : len(features) + 1]], features], axis=-1)
    x = linear(pairs, found, "fc")
    x = x + attention(x, found)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPSILON))
    normed *= found["layers.0.post_attention_layernorm.weight"]
    gate = linear(normed, found, "layers.0.mlp.gate_proj")
    wide = gate / (1 + np.exp(-gate)) * linear(normed, found, "layers.0.mlp.up_proj")
    return x + linear(wide, found, "layers.0.mlp.down_proj")


def chain(
    found: dict[str, np.ndarray], lm_head: np.ndarray, tokens: np.ndarray, features: np.ndarray, steps: int
) -> tuple[np.ndarray, list[int]]:
    """Logits after the last token and after each of the greedy drafts that follow, and those drafts.

    A predicted feature stands in for the true one of every token but the first `len(features)`.
    """
    logits, drafts = [], []
    for _ in range(steps + 1):
        features = np.concatenate([features, predicted_features(found, tokens, features)[-1:]])
        logits.append(features[-1] @ lm_head.T)
        drafts.append(int(logits[-1].argmax()))
        tokens = np.append(tokens, drafts[-1])
    return np.stack(logits), drafts[:-1]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A target and its head, as we load them, and the published tensors that both came from."""

    models: Models
    found: dict[str, np.ndarray]
    lm_head: np.ndarray


@pytest.fixture(scope="module", params=["bias", "plain", "qkv-bias", "own-embedding"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("oracle")
    hf_models.make("llama", path / "hf", num_hidden_layers=2)
    llama.convert(path / "hf", path / "ckpt")
    found = eagle(path / "hf", bias=request.param != "plain", qkv_bias=request.param == "qkv-bias")
    if request.param == "own-embedding":
        found["embed_tokens.weight"] = found["embed_tokens.weight"][::-1].copy()
    heads.convert(write(path / "head", found, EAGLE), path / "ckpt" / "heads" / "eagle", path / "ckpt")
    heads.export(path / "ckpt" / "heads" / "eagle", path / "back", "eagle")
    target = loading.load(path / "ckpt", "float32")
    head = restore_head(target, Eagle(), path / "ckpt" / "heads" / "eagle")
    lm_head = tensors(path / "hf")["lm_head.weight"]
    return Pair(Models(target=target.target, draft=head), tensors(path / "back"), lm_head)


def text(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens, and the target's features of all but the last of them."""
    tokens = np.random.default_rng(1).integers(0, EAGLE["vocab_size"], LENGTH)
    config, count = pair.models.target.config, LENGTH - 1
    causal = jnp.tril(jnp.ones((1, count, count), bool))
    empty = kv.allocate(config, 1, 1, jnp.dtype("float32"))
    ids, positions = jnp.asarray(tokens[None, :-1], jnp.int32), jnp.arange(count)[None]
    out = FORWARD(pair.models.target, ids, positions, causal, empty, jnp.zeros(1, jnp.int32))
    return tokens, np.asarray(out.hidden[0])


def start(pair: Pair) -> PairState:
    return Eagle().init(pair.models, 1, ROWS)


def observed(pair: Pair, state: PairState, tokens: np.ndarray, features: np.ndarray, first: int) -> PairState:
    """The drafter's state once it has learnt the pairs from position `first` on; what pads the block is not valid."""
    padded = lambda array: jnp.asarray(np.resize(array, (1, CHUNK, *array.shape[1:])))
    committed = Committed(
        start=jnp.asarray([first], jnp.int32),
        count=jnp.asarray([len(features) - first], jnp.int32),
        token=padded(tokens[first:-1].astype(np.int32)),
        next_token=padded(tokens[first + 1 :].astype(np.int32)),
        hidden=padded(features[first:]),
        taps=(),
    )
    return OBSERVE(pair.models, state, committed)


def drafted(pair: Pair, state: PairState, tokens: np.ndarray, drafts: list[int]) -> tuple[np.ndarray, PairState]:
    """Our logits after the root and after each of the drafts that follow it as a chain, and the state that is left."""
    prefix = Prefix(
        token=jnp.asarray(np.resize(tokens, (1, ROWS)), jnp.int32), length=jnp.asarray([len(tokens)]), cache=()
    )
    grown = tree.init_tree(jnp.asarray(tokens[-1:], jnp.int32), len(drafts) + 1, None)
    first, state = ROOT(pair.models, state, prefix, grown)
    found, cell = [first.logits[0, 0]], lambda value: jnp.asarray([[value]])
    for i, token in enumerate(drafts):
        grown = tree.add_nodes(grown, jnp.asarray([i + 1]), cell(token), cell(i), cell(0.0), cell(True))
        frontier = tree.Frontier(node=cell(i + 1), live=cell(True), level=jnp.asarray(i + 1))
        after, state = EXPAND(pair.models, state, prefix, grown, frontier)
        found.append(after.logits[0, 0])
    return np.stack(found), state


@pytest.fixture(autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield


def test_true_pairs(pair: Pair):
    tokens, features = text(pair)
    expected = predicted_features(pair.found, tokens, features) @ pair.lm_head.T
    assert np.abs(expected).max() > 1
    state, first = start(pair), 0
    for end in (5, 6, 10, LENGTH - 1):
        state, first = observed(pair, state, tokens[: end + 1], features[:end], first), end
        np.testing.assert_allclose(state.logits[0], expected[end - 1], rtol=0, atol=1e-4)


def test_chain_of_drafts(pair: Pair):
    tokens, features = text(pair)
    expected, drafts = chain(pair.found, pair.lm_head, tokens, features, STEPS)
    ours, _ = drafted(pair, observed(pair, start(pair), tokens, features, 0), tokens, drafts)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)
    assert ours[:-1].argmax(-1).tolist() == drafts


def test_drafts_leave_no_trace(pair: Pair):
    """After a round the accepted tokens are learnt by their true features, whatever was predicted of them."""
    tokens, features = text(pair)
    first = LENGTH - 5
    state = observed(pair, start(pair), tokens[: first + 1], features[:first], 0)
    _, state = drafted(pair, state, tokens[: first + 1], [1, 2, 3, 4])
    expected, drafts = chain(pair.found, pair.lm_head, tokens, features, STEPS)
    ours, _ = drafted(pair, observed(pair, state, tokens, features, first), tokens, drafts)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)
