"""Tiny EAGLE-3 heads as each project publishes them, with random weights."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from safetensors.numpy import save_file

from jaxspec.convert import llama
from tests import hf_models
from tests.convert.eagle_heads import CONFIG, HEADS, KV_HEADS, MLP, VOCABULARY, WIDTH

DRAFTED = 40
OFFICIAL = {**CONFIG, "draft_vocab_size": DRAFTED}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_config": {"algorithm": "eagle3"},
    "draft_vocab_size": DRAFTED,
    "transformer_layer_config": CONFIG,
}
MODEL_OPTIMIZER = {  # what it writes into `eagle_config` when nothing is set
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": None,
}
DEEPSPEC = {
    **{key: value for key, value in CONFIG.items() if key != "torch_dtype"},
    "architectures": ["Qwen3Eagle3Model"],
    "model_type": "qwen3",
    "head_dim": WIDTH // HEADS,
    "layer_types": ["full_attention"],
    "num_target_layers": 8,
    "target_layer_ids": [0, 1, 3, 4, 6],
    "ttt_length": 7,
    "step_loss_decay": 0.8,
}


LAYERS, TAPS = 8, [2, 4, 5]
"""Of a target deep enough for three different taps, and those of EAGLE's own code there."""
THETA = 5e5
"""Base of the target's rope, which is not that of heads whose config says none."""


def make_target(path: Path) -> Path:
    """Puts such a target into a folder: `hf` as Hugging Face has it, `ckpt` converted."""
    rope = {"rope_type": "default", "rope_theta": THETA}
    hf_models.make("llama", path / "hf", num_hidden_layers=LAYERS, rope_parameters=rope)
    llama.convert(path / "hf", path / "ckpt")
    return path


def ids(count: int = DRAFTED) -> np.ndarray:
    """A draft vocabulary of so many tokens, ascending."""
    return np.sort(np.random.default_rng(7).permutation(VOCABULARY)[:count])


def maps(drafted: np.ndarray) -> dict[str, np.ndarray]:
    """Its two tensors."""
    return {"d2t": drafted - np.arange(len(drafted)), "t2d": np.isin(np.arange(VOCABULARY), drafted)}


def weights(
    *,
    layer: str = "midlayer",
    dtype: str = "float32",
    drafted: int = DRAFTED,
    taps: int = 3,
    tap_norm: str = "none",
    final_norm: bool = True,
    embedding: np.ndarray | None = None,
    head_dim: int = WIDTH // HEADS,
    qk_norm: bool = False,
) -> dict[str, np.ndarray]:
    """Tensors of a head.

    Args:
        layer: what the layer is called: `midlayer` or `layers.0`.
        drafted: size of its draft vocabulary.
        taps: how many layers of the target it reads.
        tap_norm: norms before `fc`: `none`, of `each` tap, or of `all`.
        embedding: a table of its own.
        qk_norm: whether queries and keys have norms, as in heads of Qwen3.
    """
    rng = np.random.default_rng(3)
    noise = lambda *shape: 0.2 * rng.standard_normal(shape)
    norm = lambda size: 1 + noise(size)
    wide = {"q": HEADS * head_dim, "k": KV_HEADS * head_dim, "v": KV_HEADS * head_dim}
    inner = {
        **{f"self_attn.{part}_proj.weight": noise(size, 2 * WIDTH) for part, size in wide.items()},
        "self_attn.o_proj.weight": noise(WIDTH, HEADS * head_dim),
        "mlp.gate_proj.weight": noise(MLP, WIDTH),
        "mlp.up_proj.weight": noise(MLP, WIDTH),
        "mlp.down_proj.weight": noise(WIDTH, MLP),
        **{f"{name}.weight": norm(WIDTH) for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")},
    }
    if qk_norm:
        inner |= {f"self_attn.{part}_norm.weight": norm(head_dim) for part in ("q", "k")}
    found = {
        "fc.weight": noise(WIDTH, taps * WIDTH),
        "lm_head.weight": noise(drafted, WIDTH),
        **{f"{layer}.{name}": array for name, array in inner.items()},
        **({"norm.weight": norm(WIDTH)} if final_norm else {}),
        **({"input_norm.weight": norm(taps * WIDTH)} if tap_norm == "all" else {}),
        **({f"fc_norm.{i}.weight": norm(WIDTH) for i in range(taps)} if tap_norm == "each" else {}),
        **({} if embedding is None else {"embed_tokens.weight": embedding}),
    }
    cast = {name: array.astype(dtype) for name, array in found.items()}
    return cast | (maps(ids(drafted)) if drafted < VOCABULARY else {})


def write(folder: Path, found: dict[str, np.ndarray], config: dict[str, Any] | None = None) -> Path:
    """Writes a head as safetensors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(OFFICIAL if config is None else config))
    save_file(found, folder / "model.safetensors")
    return folder
