"""Tiny DFlash heads as each project publishes them, with random weights."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from safetensors.numpy import save_file

from tests.convert.commands import tensors
from tests.convert.eagle3_heads import LAYERS as TARGET_LAYERS
from tests.convert.eagle3_heads import ids, maps
from tests.convert.eagle_heads import MLP, VOCABULARY, WIDTH

HEADS, KV_HEADS, HEAD_DIM, LAYERS, BLOCK, MASK = 4, 2, 16, 2, 4, 90
SHAPE = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "attention_bias": False,
    "vocab_size": VOCABULARY,
    "layer_types": ["full_attention"] * LAYERS,
    "use_sliding_window": False,
    "sliding_window": None,
}
OFFICIAL = {
    **SHAPE,
    "architectures": ["DFlashDraftModel"],
    "block_size": BLOCK,
    "num_target_layers": TARGET_LAYERS,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 5]},
}
SPECULATORS = {
    "architectures": ["DFlashSpeculator"],
    "speculators_model_type": "dflash",
    "transformer_layer_config": SHAPE,
    "aux_hidden_state_layer_ids": [2, 6],
    "block_size": BLOCK,
    "mask_token_id": MASK,
    "draft_vocab_size": VOCABULARY,
    "sample_from_anchor": False,
}
TAPS = [2, 6]


def weights(dtype: str = "float32") -> dict[str, np.ndarray]:
    """Tensors of a head as DFlash's authors publish them."""
    rng = np.random.default_rng(3)
    noise = lambda *shape: 0.2 * rng.standard_normal(shape)
    wide = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    layer = lambda: {
        **{f"self_attn.{part}_proj": noise(size, WIDTH) for part, size in wide.items()},
        "self_attn.o_proj": noise(WIDTH, HEADS * HEAD_DIM),
        **{f"self_attn.{part}_norm": 1 + noise(HEAD_DIM) for part in ("q", "k")},
        "mlp.gate_proj": noise(MLP, WIDTH),
        "mlp.up_proj": noise(MLP, WIDTH),
        "mlp.down_proj": noise(WIDTH, MLP),
        **{name: 1 + noise(WIDTH) for name in ("input_layernorm", "post_attention_layernorm")},
    }
    found = {
        "fc": noise(WIDTH, len(TAPS) * WIDTH),
        "hidden_norm": 1 + noise(WIDTH),
        "norm": 1 + noise(WIDTH),
        **{f"layers.{i}.{name}": array for i in range(LAYERS) for name, array in layer().items()},
    }
    return {f"{name}.weight": array.astype(dtype) for name, array in found.items()}


def with_target(found: dict[str, np.ndarray], target: Path, drafted: bool = False) -> dict[str, np.ndarray]:
    """The same as speculators publishes it, with embedding and LM head of a target in a Hugging Face folder.

    Args:
        drafted: whether the head has a draft vocabulary; its LM head then has only those rows.
    """
    theirs, dtype = tensors(target), found["fc.weight"].dtype
    table, lm_head = theirs["model.embed_tokens.weight"].astype(dtype), theirs["lm_head.weight"].astype(dtype)
    if drafted:
        return {**found, "embed_tokens.weight": table, "lm_head.weight": lm_head[ids()], **maps(ids())}
    return {**found, "embed_tokens.weight": table, "lm_head.weight": lm_head}


def write(folder: Path, found: dict[str, np.ndarray], config: dict[str, Any] | None = None) -> Path:
    """Writes a head as safetensors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(OFFICIAL if config is None else config))
    save_file(found, folder / "model.safetensors")
    return folder
