"""Tiny EAGLE heads in their published format, with random weights, for a target that conversion made."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from safetensors.numpy import save_file

from tests.convert.commands import tensors

WIDTH, MLP, VOCABULARY, HEADS, KV_HEADS = 32, 48, 96, 4, 2
"""Shape of a head; all but the grouped keys and values are those of the targets in `tests.hf_models`."""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float16",
    "vocab_size": VOCABULARY,
}


def weights(
    target: Path, *, dtype: str = "float32", bias: bool = True, qkv_bias: bool = False
) -> dict[str, np.ndarray]:
    """Tensors of a head; `target` is the Hugging Face folder whose embedding it repeats."""
    rng = np.random.default_rng(0)
    noise = lambda *shape: 0.2 * rng.standard_normal(shape)
    kv = WIDTH // HEADS * KV_HEADS
    layer = {
        "self_attn.q_proj.weight": noise(WIDTH, WIDTH),
        "self_attn.k_proj.weight": noise(kv, WIDTH),
        "self_attn.v_proj.weight": noise(kv, WIDTH),
        "self_attn.o_proj.weight": noise(WIDTH, WIDTH),
        "mlp.gate_proj.weight": noise(MLP, WIDTH),
        "mlp.up_proj.weight": noise(MLP, WIDTH),
        "mlp.down_proj.weight": noise(WIDTH, MLP),
        "post_attention_layernorm.weight": 1 + noise(WIDTH),
    }
    if qkv_bias:
        layer |= {f"self_attn.{p}_proj.bias": noise(size) for p, size in (("q", WIDTH), ("k", kv), ("v", kv))}
    found = {
        "embed_tokens.weight": tensors(target)["model.embed_tokens.weight"],
        "fc.weight": noise(WIDTH, 2 * WIDTH),
        **({"fc.bias": noise(WIDTH)} if bias else {}),
        **{f"layers.0.{name}": array for name, array in layer.items()},
    }
    return {name: array.astype(dtype) for name, array in found.items()}


def write(folder: Path, found: dict[str, np.ndarray], config: dict[str, Any] | None = None) -> Path:
    """Writes a head as safetensors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    save_file(found, folder / "model.safetensors")
    return folder
