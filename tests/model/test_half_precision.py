"""In bfloat16 and float16 values are rounded only where they enter a product or a cache: errors, and no overflow.

The compiler may leave roundings out on a CPU, and does not where products have units of their own. Here it may not.
"""

import dataclasses
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxspec.checkpoint import parameters
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.convert.llama import convert
from jaxspec.model import backend
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama, forward
from jaxspec.model.quantization import is_quantized, quantized
from jaxspec.model.rope import rotary
from tests import hf_models

BATCH, LENGTH = 4, 48
AS_WRITTEN: dict[str, str | bool] = {"xla_allow_excess_precision": False}


def logits_of(model: Llama, tokens: np.ndarray, taps: tuple[int, ...] = ()) -> tuple[np.ndarray, Any]:
    """Logits of every token, float32, and the whole output of the forward."""

    def read(model: Llama, tokens: jax.Array) -> tuple[jax.Array, Any]:
        batch, width = tokens.shape
        empty, none = kv.allocate(model.config, batch, 1, model.dtype), jnp.zeros(batch, jnp.int32)
        at = jnp.broadcast_to(jnp.arange(width), tokens.shape)
        out = forward(model, tokens, at, causal_mask(batch, width), empty, none, taps=taps)
        return model.logits(out.hidden), out

    compiled = jax.jit(read).lower(model, jnp.asarray(tokens)).compile(AS_WRITTEN)
    logits, out = compiled(model, jnp.asarray(tokens))
    assert logits.dtype == jnp.float32
    return np.asarray(logits), out


def in_dtype(model: Llama, dtype: str) -> Llama:
    params = module_to_dict(model).items()
    return dict_to_module(model, {name: x if is_quantized(name) else x.astype(dtype) for name, x in params})


def typical_error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.median(np.abs(found.astype(np.float64) - exact)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral"])
def test_nearer_to_the_exact_logits_than_transformers(family: str, dtype: str, tmp_path: Path):
    theirs = hf_models.make(family, tmp_path / "theirs", dtype=dtype)
    convert(tmp_path / "theirs", tmp_path / "ours")
    model = parameters.restore(tmp_path / "ours", jnp.dtype(dtype))
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (BATCH, LENGTH))
    with torch.inference_mode():
        half = theirs(torch.from_numpy(tokens)).logits.float().numpy()
        exact = theirs.float()(torch.from_numpy(tokens)).logits.numpy()
    ours, _ = logits_of(model, tokens)
    assert typical_error(ours, exact) < 0.9 * typical_error(half, exact)


SHAPE = LlamaConfig(
    vocab_size=32, hidden_size=32, intermediate_size=64, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8
)


@pytest.mark.parametrize("kind", ["float16", "int8", "int4"])
def test_activations_beyond_float16_do_not_overflow(kind: str):
    """The residual stream exceeds 65,504, as in Qwen2: that is float32. Heads read it cut off at that number."""
    model = Llama(SHAPE, rngs=nnx.Rngs(0))
    params = module_to_dict(model)
    params |= {name: 3e4 * array for name, array in params.items() if name.endswith(("down.kernel", ".o.kernel"))}
    exact = dict_to_module(model, params)
    exact = exact if kind == "float16" else quantized(exact, kind)
    half = in_dtype(exact, "float16")
    tokens = np.random.default_rng(1).integers(0, 32, (2, 16))
    expected, whole = logits_of(exact, tokens, taps=(2,))
    assert np.abs(whole.taps[0]).max() > 1e5
    found, out = logits_of(half, tokens, taps=(2,))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert out.taps[0].dtype == jnp.float16 and np.abs(out.taps[0]).max() == np.finfo(np.float16).max


def written_again(model: Llama, tokens: np.ndarray) -> np.ndarray:
    """Logits of one text in float64. Values are rounded to the model's dtype where they enter a product or a cache."""
    params = {name: np.asarray(array, np.float64) for name, array in module_to_dict(model).items()}
    c, group = model.config, model.config.num_heads // model.config.num_kv_heads
    narrow = lambda x: np.asarray(x).astype(model.dtype).astype(np.float64)
    cos, sin = (np.asarray(part, np.float64)[0, :, None] for part in rotary(c, jnp.arange(len(tokens))[None]))

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return narrow(x / np.sqrt((x * x).mean(-1, keepdims=True) + c.norm_eps) * params[name])

    def heads(x: np.ndarray, name: str) -> np.ndarray:
        return (x @ params[f"{name}.kernel"]).reshape(len(x), -1, c.head_dim)

    def rotated(x: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, axis=-1)
        return narrow(np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1))

    x, causal = params["embedding"][tokens], np.tri(len(tokens), dtype=bool)
    for i in range(c.num_layers):
        at = f"layers.{i}.attention"
        read = norm(x, f"layers.{i}.attention_norm")
        query, key = rotated(heads(read, f"{at}.q")), np.repeat(rotated(heads(read, f"{at}.k")), group, 1)
        scores = np.where(causal, np.einsum("qhd,khd->hqk", query, key) / np.sqrt(c.head_dim), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        value = np.repeat(narrow(heads(read, f"{at}.v")), group, 1)
        mixed = np.einsum("hqk,khd->qhd", narrow(weights), value) / weights.sum(-1).T[..., None]
        x = x + narrow(mixed).reshape(len(x), -1) @ params[f"{at}.o.kernel"]
        read, mlp = norm(x, f"layers.{i}.mlp_norm"), f"layers.{i}.mlp"
        gate, up = read @ params[f"{mlp}.gate.kernel"], read @ params[f"{mlp}.up.kernel"]
        x = x + narrow(gate / (1 + np.exp(-gate)) * up) @ params[f"{mlp}.down.kernel"]
    return norm(x, "norm") @ params["head.kernel"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounded_where_a_value_enters_a_product_and_nowhere_else(dtype: str):
    """One rounding more, anywhere, and most logits would differ by a thousand times as much."""
    whole, draw = Llama(dataclasses.replace(SHAPE, num_layers=1), rngs=nnx.Rngs(3)), np.random.default_rng(2)
    params = module_to_dict(whole)  # initial norms have scales of 1, which round nothing
    params |= {name: x * draw.uniform(0.5, 2, x.shape) for name, x in params.items() if name.endswith("norm")}
    model = in_dtype(dict_to_module(whole, params), dtype)
    tokens = draw.integers(0, SHAPE.vocab_size, LENGTH)
    found, _ = logits_of(model, tokens[None])
    assert typical_error(found[0], written_again(model, tokens)) < 1e-6


@pytest.mark.parametrize(
    ("platform", "capability", "dtype"),
    [
        ("cpu", None, "float32"),
        ("tpu", None, "bfloat16"),
        ("gpu", "7.5", "float16"),
        ("gpu", "8.0", "bfloat16"),
        ("gpu", "12.0", "bfloat16"),
        ("gpu", "gfx942", "bfloat16"),
    ],
)
def test_the_dtype_of_a_device(platform: str, capability: str | None, dtype: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "platform", lambda: platform)
    monkeypatch.setattr(backend, "default_device", lambda: types.SimpleNamespace(compute_capability=capability))
    assert backend.default_dtype() == dtype
