"""Tiny draft heads as each project publishes them, with random weights, for the target of `conftest`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from safetensors.numpy import save_file

from tests.convert.commands import tensors

WIDTH, MLP, VOCABULARY, HEADS, KV_HEADS = 32, 48, 96, 4, 2
"""Shape of a head; all but the grouped keys and values are those of the targets in `tests.hf_models`."""
DRAFTED = 40
"""Tokens of a draft vocabulary."""
LAYERS, TAPS = 8, [2, 4, 5]
"""Of a target deep enough for three different taps, and those of EAGLE's own code there."""
LISTED = "eagle_aux_hidden_state_layer_ids"

EAGLE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": WIDTH,
    "intermediate_size": MLP, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "torch_dtype": "float16", "vocab_size": VOCABULARY,
}  # fmt: skip
EAGLE3 = {**EAGLE, "draft_vocab_size": DRAFTED}
EAGLE3_SPECULATORS = {
    "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
    "speculators_config": {"algorithm": "eagle3"}, "draft_vocab_size": DRAFTED, "transformer_layer_config": EAGLE,
}  # fmt: skip
MODEL_OPTIMIZER = {  # what it writes into `eagle_config` when nothing is set
    "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
    "use_mtp_layernorm": False, "next_layer_regular": True, "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": None,
}  # fmt: skip
EAGLE3_DEEPSPEC = {
    **{key: value for key, value in EAGLE.items() if key != "torch_dtype"},
    "architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", "head_dim": WIDTH // HEADS,
    "layer_types": ["full_attention"], "num_target_layers": LAYERS, "target_layer_ids": [0, 1, 3, 4, 6],
    "ttt_length": 7, "step_loss_decay": 0.8,
}  # fmt: skip

BLOCK, MASK, DFLASH_HEAD_DIM, DFLASH_LAYERS, DFLASH_TAPS = 4, 90, 16, 2, [2, 6]
DFLASH_SHAPE = {
    "model_type": "qwen3", "hidden_act": "silu", "hidden_size": WIDTH, "intermediate_size": MLP,
    "num_hidden_layers": DFLASH_LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": DFLASH_HEAD_DIM, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "attention_bias": False, "vocab_size": VOCABULARY, "layer_types": ["full_attention"] * DFLASH_LAYERS,
    "use_sliding_window": False, "sliding_window": None,
}  # fmt: skip
DFLASH = {
    **DFLASH_SHAPE, "architectures": ["DFlashDraftModel"], "block_size": BLOCK, "num_target_layers": LAYERS,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 5]},
}  # fmt: skip
DFLASH_SPECULATORS = {
    "architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash",
    "transformer_layer_config": DFLASH_SHAPE, "aux_hidden_state_layer_ids": DFLASH_TAPS, "block_size": BLOCK,
    "mask_token_id": MASK, "draft_vocab_size": VOCABULARY, "sample_from_anchor": False,
}  # fmt: skip

MARKOV_RANK = 5
DEEPSPEC = {
    **DFLASH_SHAPE, "architectures": ["Qwen3DSparkModel"], "block_size": BLOCK, "num_target_layers": LAYERS,
    "mask_token_id": MASK, "target_layer_ids": [1, 5], "num_anchors": 8, "markov_rank": 0,
    "enable_confidence_head": False, "tie_word_embeddings": False,
}  # fmt: skip
DSPARK_TERMS = {
    "markov_rank": MARKOV_RANK, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip

MEDUSA_HEADS = 3
MEDUSA = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "org/model"}

Noise = Callable[..., np.ndarray]


def _noise(seed: int) -> Noise:
    rng = np.random.default_rng(seed)
    return lambda *shape: 0.2 * rng.standard_normal(shape)


def _attention(noise: Noise, head_dim: int, reads: int = WIDTH) -> dict[str, np.ndarray]:
    wide = {"q": HEADS * head_dim, "k": KV_HEADS * head_dim, "v": KV_HEADS * head_dim}
    made = {f"self_attn.{part}_proj.weight": noise(size, reads) for part, size in wide.items()}
    return made | {"self_attn.o_proj.weight": noise(WIDTH, HEADS * head_dim)}


def _mlp(noise: Noise) -> dict[str, np.ndarray]:
    shapes = {"gate": (MLP, WIDTH), "up": (MLP, WIDTH), "down": (WIDTH, MLP)}
    return {f"mlp.{part}_proj.weight": noise(*shape) for part, shape in shapes.items()}


def _norms(noise: Noise, size: int, *names: str) -> dict[str, np.ndarray]:
    return {f"{name}.weight": 1 + noise(size) for name in names}


def _under(prefix: str, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{prefix}.{name}": array for name, array in found.items()}


def _cast(found: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    return {name: array.astype(dtype) for name, array in found.items()}


def eagle(target: Path, *, dtype: str = "float32", bias: bool = True, qkv_bias: bool = False) -> dict[str, np.ndarray]:
    """Tensors of a head of EAGLE-1; `target` is the Hugging Face folder whose embedding it repeats."""
    noise, kv = _noise(0), WIDTH // HEADS * KV_HEADS
    layer = _attention(noise, WIDTH // HEADS) | _mlp(noise) | _norms(noise, WIDTH, "post_attention_layernorm")
    if qkv_bias:
        layer |= {f"self_attn.{p}_proj.bias": noise(size) for p, size in (("q", WIDTH), ("k", kv), ("v", kv))}
    found = {
        "embed_tokens.weight": tensors(target)["model.embed_tokens.weight"],
        "fc.weight": noise(WIDTH, 2 * WIDTH),
        **({"fc.bias": noise(WIDTH)} if bias else {}),
        **_under("layers.0", layer),
    }
    return _cast(found, dtype)


def ids(count: int = DRAFTED) -> np.ndarray:
    """A draft vocabulary of so many tokens, ascending."""
    return np.sort(np.random.default_rng(7).permutation(VOCABULARY)[:count])


def maps(drafted: np.ndarray) -> dict[str, np.ndarray]:
    """Its two tensors."""
    return {"d2t": drafted - np.arange(len(drafted)), "t2d": np.isin(np.arange(VOCABULARY), drafted)}


def eagle3(
    *,
    layer: str = "midlayer",
    dtype: str = "float32",
    drafted: int = DRAFTED,
    taps: int = 3,
    tap_norm: str = "none",
    embedding: np.ndarray | None = None,
    head_dim: int = WIDTH // HEADS,
    qk_norm: bool = False,
) -> dict[str, np.ndarray]:
    """Tensors of an EAGLE-3 head.

    Args:
        layer: what the layer is called: `midlayer` or `layers.0`.
        drafted: size of its draft vocabulary.
        taps: how many layers of the target it reads.
        tap_norm: norms before `fc`: `none`, of `each` tap, or of `all`.
        embedding: a table of its own.
        qk_norm: whether queries and keys have norms, as in heads of Qwen3.
    """
    noise = _noise(3)
    inner = _attention(noise, head_dim, 2 * WIDTH) | _mlp(noise)
    inner |= _norms(noise, WIDTH, "hidden_norm", "input_layernorm", "post_attention_layernorm")
    if qk_norm:
        inner |= _norms(noise, head_dim, "self_attn.q_norm", "self_attn.k_norm")
    found = {
        "fc.weight": noise(WIDTH, taps * WIDTH),
        "lm_head.weight": noise(drafted, WIDTH),
        **_under(layer, inner),
        **_norms(noise, WIDTH, "norm"),
        **(_norms(noise, taps * WIDTH, "input_norm") if tap_norm == "all" else {}),
        **(_norms(noise, WIDTH, *(f"fc_norm.{i}" for i in range(taps))) if tap_norm == "each" else {}),
        **({} if embedding is None else {"embed_tokens.weight": embedding}),
    }
    return _cast(found, dtype) | (maps(ids(drafted)) if drafted < VOCABULARY else {})


def dflash(dtype: str = "float32") -> dict[str, np.ndarray]:
    """Tensors of a head as DFlash's authors publish them."""
    noise = _noise(3)
    found = {"fc.weight": noise(WIDTH, len(DFLASH_TAPS) * WIDTH), **_norms(noise, WIDTH, "hidden_norm", "norm")}
    for i in range(DFLASH_LAYERS):
        layer = _attention(noise, DFLASH_HEAD_DIM) | _norms(
            noise, DFLASH_HEAD_DIM, "self_attn.q_norm", "self_attn.k_norm"
        )
        layer |= _mlp(noise) | _norms(noise, WIDTH, "input_layernorm", "post_attention_layernorm")
        found |= _under(f"layers.{i}", layer)
    return _cast(found, dtype)


def dspark(dtype: str = "float32", drafted: int = VOCABULARY, *, with_markov: bool = True) -> dict[str, np.ndarray]:
    """Tensors of a DSpark head, without embedding and LM head, over so many drafted tokens."""
    noise, reads = _noise(5), WIDTH + MARKOV_RANK * with_markov
    terms = {
        "markov_head.markov_w1.weight": noise(VOCABULARY, MARKOV_RANK),
        "markov_head.markov_w2.weight": noise(drafted, MARKOV_RANK),
        "confidence_head.proj.weight": noise(1, reads), "confidence_head.proj.bias": noise(1),
    }  # fmt: skip
    return dflash(dtype) | _cast(terms, dtype)


def narrow_eagle3() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and config of an EAGLE-3 head that is half as wide as its target."""
    noise, width, mlp = _noise(4), WIDTH // 2, MLP // 2
    layer = {
        **{f"self_attn.{part}_proj.weight": noise(width if part == "q" else width // 2, 2 * width) for part in "qkv"},
        "self_attn.o_proj.weight": noise(width, width), "mlp.gate_proj.weight": noise(mlp, width),
        "mlp.up_proj.weight": noise(mlp, width), "mlp.down_proj.weight": noise(width, mlp),
        **_norms(noise, width, "hidden_norm", "input_layernorm", "post_attention_layernorm"),
    }  # fmt: skip
    found = {
        "fc.weight": noise(width, 3 * WIDTH), "lm_head.weight": noise(DRAFTED, width), **_norms(noise, width, "norm"),
        "embed_tokens.weight": noise(VOCABULARY, width), **_under("midlayer", layer),
    }  # fmt: skip
    config = {
        **EAGLE3, "hidden_size": width, "target_hidden_size": WIDTH, "intermediate_size": mlp,
        "num_attention_heads": HEADS // 2, "num_key_value_heads": 1,
    }  # fmt: skip
    return _cast(found, "float32") | maps(ids()), config


def with_target(found: dict[str, np.ndarray], target: Path, drafted: bool = False) -> dict[str, np.ndarray]:
    """The same as speculators publishes it, with embedding and LM head of a target in a Hugging Face folder.

    Args:
        drafted: whether the head has a draft vocabulary; its LM head then has only those rows.
    """
    theirs, dtype = tensors(target), found["fc.weight"].dtype
    table, lm_head = theirs["model.embed_tokens.weight"].astype(dtype), theirs["lm_head.weight"].astype(dtype)
    rest = {"lm_head.weight": lm_head[ids()], **maps(ids())} if drafted else {"lm_head.weight": lm_head}
    return {**found, "embed_tokens.weight": table, **rest}


def medusa(dtype: str = "float32") -> dict[str, np.ndarray]:
    """Tensors of Medusa heads."""
    noise = _noise(0)
    made = [
        {"0.linear.weight": noise(WIDTH, WIDTH), "0.linear.bias": noise(WIDTH), "1.weight": noise(VOCABULARY, WIDTH)}
        for _ in range(MEDUSA_HEADS)
    ]
    return _cast({f"{i}.{name}": array for i, head in enumerate(made) for name, array in head.items()}, dtype)


def write(folder: Path, found: dict[str, Any], config: dict[str, Any], file: str = "model.safetensors") -> Path:
    """Writes a head as safetensors, without the tensors that are None."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: array for name, array in found.items() if array is not None}, folder / file)
    return folder


KINDS: dict[str, Callable[[Path], tuple[dict[str, np.ndarray], dict[str, Any]]]] = {
    "eagle": lambda target: (eagle(target), EAGLE),
    "eagle3": lambda _: (eagle3(), EAGLE3),
    "eagle3 speculators": lambda _: (eagle3(layer="layers.0"), EAGLE3_SPECULATORS),
    "dflash": lambda _: (dflash(), DFLASH),
    "dflash speculators": lambda target: (with_target(dflash(), target), DFLASH_SPECULATORS),
    "dspark": lambda target: (with_target(dspark(), target), DEEPSPEC | DSPARK_TERMS),
    "medusa": lambda _: (medusa(), MEDUSA),
}
"""Tensors and config of a head of each kind and layout, for the Hugging Face folder of a target."""
