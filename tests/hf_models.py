"""Tiny random models of each family, made by transformers: what conversion and parity are tested against."""

from pathlib import Path
from typing import Any

import torch
import transformers

_TINY = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": None,
}  # fmt: skip
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_rope = lambda kind, factor: {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, "factor": factor}}

# Family → class of transformers, and what differs from _TINY.
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "llama-tied": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama-gqa-headdim": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {"num_key_value_heads": 2, "head_dim": 16, "attention_bias": True, "mlp_bias": True},
    ),
    "llama3-rope": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"rope_parameters": _LLAMA3_ROPE}),
    "linear-rope": (transformers.LlamaConfig, transformers.LlamaForCausalLM, _rope("linear", 4.0)),
    "dynamic-rope": (transformers.LlamaConfig, transformers.LlamaForCausalLM, _rope("dynamic", 2.0)),
    "codellama": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {"vocab_size": 112, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "mistral": (
        transformers.MistralConfig,
        transformers.MistralForCausalLM,
        {"num_key_value_heads": 2, "sliding_window": None},
    ),
    "mixtral": (
        transformers.MixtralConfig,
        transformers.MixtralForCausalLM,
        {"num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {"num_key_value_heads": 2}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {"num_key_value_heads": 2, "head_dim": 16}),
}


def make(family: str, path: Path, *, dtype: str = "float32", shard_size: str = "5GB", seed: int = 0, **overrides: Any):
    """Saves a random model of `family` at `path` as Hugging Face safetensors and returns it, ready for evaluation.

    Every parameter is random, norms and biases too, so that none can be lost or swapped unseen.

    Args:
        dtype: of every parameter.
        shard_size: largest file; "20KB" makes several of them.
        overrides: settings of config.json that differ from the family's.
    """
    config_class, model_class, settings = FAMILIES[family]
    model = model_class(config_class(**{**_TINY, **settings, **overrides})).to(getattr(torch, dtype))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            center, scale = (1.0, 0.1) if "norm" in name else (0.0, 0.2)
            parameter.copy_(center + scale * noise)
    model.eval().save_pretrained(path, max_shard_size=shard_size)
    return model
