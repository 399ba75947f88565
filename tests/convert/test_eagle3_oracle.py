"""Our drafter against EAGLE-3 in NumPy, which reads the published tensors themselves, and transformers' hidden states.

The rendering knows nothing of caches or trees: for each node it runs all the pairs on the path to it from the start.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaxspec.checkpoint import loading
from jaxspec.convert import heads
from jaxspec.decoding import tree
from jaxspec.decoding.drafter import Committed, Drafts, Models, Prefix
from jaxspec.drafters.eagle3 import Eagle3
from jaxspec.drafters.eagle_state import PairState
from jaxspec.engine.head_weights import restore_head
from jaxspec.model import kv_cache as kv
from jaxspec.model.llama import forward
from tests.convert.commands import tensors
from tests.convert.published_heads import (
    EAGLE,
    EAGLE3,
    EAGLE3_DEEPSPEC,
    EAGLE3_SPECULATORS,
    LAYERS,
    LISTED,
    MODEL_OPTIMIZER,
    VOCABULARY,
    eagle3,
    ids,
    narrow_eagle3,
    write,
)
from tests.convert.test_eagle_oracle import EPSILON, attention, linear

LENGTH, CHUNK, ROWS = 14, 16, 32
TREE = ((5, 0), (9, 0), (17, 1), (5, 1), (44, 4))
"""Tokens and the nodes that they follow, from node 1 on; the root is 0."""
OBSERVE, ROOT, EXPAND = jax.jit(Eagle3().observe), jax.jit(Eagle3().root), jax.jit(Eagle3().expand)
LEVELS = ((1, 2), (3, 4), (5,))


@dataclasses.dataclass(frozen=True)
class Case:
    """A head and what its config means, as its writer's documentation has it."""

    config: dict[str, Any]
    made: dict[str, Any] = dataclasses.field(default_factory=dict)
    taps: tuple[int, ...] = (2, 4, 5)
    tap_norm: str = "none"
    normed_residual: bool = False
    fed_back_normed: bool = False
    window: int = 10**6


WHOLE = {"drafted": VOCABULARY}
CASES = {
    "official": Case(EAGLE3),
    "outputs": Case({**EAGLE3, "eagle_config": {LISTED: [0, 2, 6], **MODEL_OPTIMIZER}}, taps=(1, 3, 7)),
    "deepspec": Case(
        EAGLE3_DEEPSPEC,
        {"layer": "layers.0", "taps": 5, "qk_norm": True, "embedding": None, **WHOLE},
        taps=(1, 2, 4, 5, 7),
    ),
    "narrow": Case(narrow_eagle3()[1]),
    "window": Case(
        {
            **EAGLE3_SPECULATORS,
            "transformer_layer_config": {**EAGLE, "layer_types": ["sliding_attention"], "sliding_window": 4},
        },
        {"layer": "layers.0"},
        window=4,
    ),
    "fc_norm": Case({**EAGLE3, "fc_norm": True}, {"tap_norm": "each", "qk_norm": True}, tap_norm="each"),
    "norm_output": Case(
        {**EAGLE3, "norm_output": True, "draft_vocab_size": VOCABULARY},
        {"embedding": None, **WHOLE},
        fed_back_normed=True,
    ),
    "speculators": Case(
        {
            **EAGLE3_SPECULATORS,
            "norm_before_fc": True,
            "norm_before_residual": True,
            "norm_output": True,
            LISTED: [0, 3, 6],
        },
        {"layer": "layers.0", "tap_norm": "all"},
        taps=(0, 3, 6),
        tap_norm="all",
        normed_residual=True,
        fed_back_normed=True,
    ),
}


@dataclasses.dataclass(frozen=True)
class Setup:
    """A target and its head, as we load them, and what the rendering reads."""

    case: Case
    models: Models
    found: dict[str, np.ndarray]  # with the layer called layers.0
    tokens: np.ndarray  # a text
    hidden: list[np.ndarray]  # transformers' hidden states of it
    entering: tuple[np.ndarray, ...]  # ours: what enters each layer


def rms(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPSILON)) * scale


def fused(setup: Setup, count: int) -> np.ndarray:
    """Features of the first tokens of the text: fc of the hidden states that enter the tapped layers."""
    taps = [setup.hidden[tap][:count] for tap in setup.case.taps]
    if setup.case.tap_norm == "each":
        taps = [rms(tap, setup.found[f"fc_norm.{i}.weight"]) for i, tap in enumerate(taps)]
    joined = np.concatenate(taps, axis=-1)
    if setup.case.tap_norm == "all":
        joined = rms(joined, setup.found["input_norm.weight"])
    return linear(joined, setup.found, "fc")


def layer(setup: Setup, tokens: np.ndarray, features: np.ndarray) -> np.ndarray:
    """The residual stream at the layer's end, of pairs of a feature and the token after it."""
    found, norm = setup.found, lambda x, name: rms(x, setup.found[f"layers.0.{name}.weight"])
    normed = norm(features, "hidden_norm")
    embedded = norm(found["embed_tokens.weight"][tokens], "input_layernorm")
    x = normed if setup.case.normed_residual else features
    x = x + attention(np.concatenate([embedded, normed], axis=-1), found, setup.case.window)
    inner = norm(x, "post_attention_layernorm")
    gate = linear(inner, found, "layers.0.mlp.gate_proj")
    return x + linear(
        gate / (1 + np.exp(-gate)) * linear(inner, found, "layers.0.mlp.up_proj"), found, "layers.0.mlp.down_proj"
    )


def expected(setup: Setup, count: int, path: list[int]) -> np.ndarray:
    """Log-probabilities of the drafted tokens after `count` tokens of the text and a path of drafts."""
    tokens, features = setup.tokens[1:count], fused(setup, count - 1)
    for token in [*path, None]:
        out = layer(setup, tokens, features)[-1:]
        normed = rms(out, setup.found["norm.weight"])
        if token is None:
            break
        features = np.concatenate([features, normed if setup.case.fed_back_normed else out])
        tokens = np.append(tokens, token)
    logits = (normed @ setup.found["lm_head.weight"].T)[0]
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


@pytest.fixture(scope="module")
def text() -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCABULARY, LENGTH)


@pytest.fixture(scope="module")
def layer_inputs(target: Path, text: np.ndarray) -> tuple[np.ndarray, ...]:
    """What enters each layer of our target."""
    model = loading.load(target / "ckpt", "float32").target
    causal, empty = jnp.tril(jnp.ones((1, LENGTH, LENGTH), bool)), kv.allocate(model.config, 1, 1, jnp.dtype("float32"))
    tokens, at, none = jnp.asarray(text[None], jnp.int32), jnp.arange(LENGTH)[None], jnp.zeros(1, jnp.int32)
    run = jax.jit(functools.partial(forward, taps=tuple(range(LAYERS))))
    return tuple(np.asarray(tap[0]) for tap in run(model, tokens, at, causal, empty, none).taps)


@pytest.fixture(scope="module", params=CASES)
def setup(
    request: pytest.FixtureRequest,
    target: Path,
    text: np.ndarray,
    layer_inputs: tuple[np.ndarray, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> Setup:
    case, path = CASES[request.param], tmp_path_factory.mktemp("head")
    table = tensors(target / "hf")["model.embed_tokens.weight"]
    own = {"embedding": table[::-1].copy()} if "embedding" in case.made else {}
    found = narrow_eagle3()[0] if "target_hidden_size" in case.config else eagle3(**{**case.made, **own})
    heads.convert(write(path / "published", found, case.config), path / "head", target / "ckpt")
    checkpoint = loading.load(target / "ckpt", "float32")
    head = restore_head(checkpoint, Eagle3(), path / "head")
    model = transformers.LlamaForCausalLM.from_pretrained(target / "hf")
    with torch.no_grad():
        states = model(torch.from_numpy(text)[None], output_hidden_states=True).hidden_states
    renamed = {name.replace("midlayer.", "layers.0."): array for name, array in found.items()}
    return Setup(
        case,
        Models(target=checkpoint.target, draft=head),
        {"embed_tokens.weight": table, **renamed},
        text,
        [state[0].numpy() for state in states],
        layer_inputs,
    )


@pytest.fixture(autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield


def observed(setup: Setup, state: PairState, first: int, count: int) -> PairState:
    """The state once the first `count` tokens are committed, of which it knew `first`; the block is padded."""
    padded = lambda array: jnp.asarray(np.resize(array[first : count - 1], (1, CHUNK, *array.shape[1:])))
    tokens, taps = setup.tokens.astype(np.int32), [setup.entering[tap] for tap in Eagle3().taps(setup.models)]
    committed = Committed(
        start=jnp.asarray([first], jnp.int32),
        count=jnp.asarray([count - 1 - first], jnp.int32),
        token=padded(tokens),
        next_token=padded(np.roll(tokens, -1)),
        hidden=padded(taps[0]),
        taps=tuple(map(padded, taps)),
    )
    return OBSERVE(setup.models, state, committed)


def path_of(node: int) -> list[int]:
    """Tokens from the root's child down to a node."""
    token, parent = TREE[node - 1]
    return [*(path_of(parent) if parent else []), token]


def compare(setup: Setup, drafts: Drafts, place: int, count: int, path: list[int]) -> None:
    ours = jax.nn.log_softmax(drafts.logits[0, place])
    wanted = expected(setup, count, path)
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-4)
    drafted = ids(setup.case.made.get("drafted", len(ids())))
    np.testing.assert_array_equal(np.arange(VOCABULARY) if drafts.token is None else drafts.token[0, 0], drafted)


def draft(setup: Setup, state: PairState, count: int) -> PairState:
    """Drafts the tree, its levels several nodes at once, and compares what is said after every node."""
    prefix = Prefix(
        token=jnp.asarray(np.resize(setup.tokens, (1, ROWS)), jnp.int32), length=jnp.asarray([count]), cache=()
    )
    grown = tree.init_tree(jnp.asarray(setup.tokens[count - 1 : count], jnp.int32), len(TREE) + 1, None)
    drafts, state = ROOT(setup.models, state, prefix, grown)
    compare(setup, drafts, 0, count, [])
    for level, nodes in enumerate(LEVELS, 1):
        token, parent = (jnp.asarray([[TREE[node - 1][part] for node in nodes]]) for part in (0, 1))
        sure, live = jnp.zeros((1, len(nodes))), jnp.ones((1, len(nodes)), bool)
        grown = tree.add_nodes(grown, jnp.asarray(nodes), token, parent, sure, live)
        frontier = tree.Frontier(node=jnp.asarray([nodes]), live=live, level=jnp.asarray(level))
        drafts, state = EXPAND(setup.models, state, prefix, grown, frontier)
        for place, node in enumerate(nodes):
            compare(setup, drafts, place, count, path_of(node))
    return state


def test_logits_of_three_rounds(setup: Setup):
    """Prefill in two calls, then rounds that accept one, three and no drafts, each with a tree."""
    assert np.abs(expected(setup, LENGTH, [])).max() > 1
    state, known = Eagle3().init(setup.models, 1, ROWS), 0
    for count in (5, 8):
        state, known = observed(setup, state, known, count), count - 1
    for count in (10, 13, LENGTH):
        state, known = observed(setup, state, known, count), count - 1
        state = draft(setup, state, count)
