"""GGUF files as llama.cpp's converter writes them: tiny models, and vocabularies of each kind."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

_PARTS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def settings(config: Any) -> dict[str, Any]:
    """Metadata of a transformers config."""
    kind = "llama" if config.model_type == "mistral" else config.model_type
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    values = {
        "vocab_size": config.vocab_size, "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size, "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads, "attention.key_length": head_dim,
        "attention.value_length": head_dim, "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope["rope_theta"], "rope.dimension_count": head_dim,
    }  # fmt: skip
    if rope["rope_type"] == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    return {"general.architecture": kind, **{f"{kind}.{key}": value for key, value in values.items()}}


def tensors(model: Any) -> dict[str, np.ndarray]:
    """The tensors of a transformers model, in llama.cpp's names and order of rows."""
    config, found = model.config, {}
    rotated = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        module, _, suffix = name.rpartition(".")
        _, _, inside = module.partition("model.layers.")
        layer, _, part = inside.partition(".")
        theirs = f"blk.{layer}.{_PARTS[part]}" if inside else _PARTS[module]
        if config.model_type in ("llama", "mistral") and (heads := rotated.get(theirs.rpartition(".")[2])):
            rows = np.arange(len(tensor)).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
            tensor = tensor[rows]
        found[f"{theirs}.{suffix}"] = tensor.float().numpy()
    if config.rope_parameters["rope_type"] == "llama3":
        found["rope_freqs.weight"] = rope_factors(
            config.rope_parameters, config.hidden_size // config.num_attention_heads
        )
    return found


def rope_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """[H/2], LLaMA 3's factors in float32, by the wavelengths of its authors."""
    wavelengths = 2 * np.pi * np.float32(rope["rope_theta"]) ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    length, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (length / wavelengths - low) / (high - low)
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    ends = np.where(wavelengths > length / low, rope["factor"], between)
    return np.where(wavelengths < length / high, 1, ends).astype(np.float32)


def write(path: Path, metadata: dict[str, Any], arrays: dict[str, Any], **how: Any) -> None:
    """Writes a file. An array can be a pair: bytes, and their GGML type.

    Args:
        how: arguments of GGUFWriter.
    """
    writer = gguf.GGUFWriter(path, metadata["general.architecture"], **how)
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, array in arrays.items():
        array, kind = array if isinstance(array, tuple) else (array, None)
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        kinds = {str: gguf.GGUFValueType.STRING, float: gguf.GGUFValueType.FLOAT32, int: gguf.GGUFValueType.INT32}
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, kinds[type(value[0])])
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def model(path: Path, made: Any, extra: dict[str, Any] | None = None, **how: Any) -> None:
    """Writes a transformers model."""
    write(path, {**settings(made.config), **(extra or {})}, tensors(made), **how)


# Text whose prefixes are tokens, so that ids show where text was cut.
_WORDS = (
    "hello", " hello", " world", " 12", "12", "123", "1234567", "  ", "   ", "    ", "\n\n", "\n\n\n", "\r\n", "\t\t",
    " \n", "'s", "'S", "'ll", "'LL", "don't", "camelCase", "HTTPServer", "!!", "!!!", "...", " ...", "==", ");", "/*",
    "\n/", "สวัสดี", " สวัสดี", "今天", "天气", "مرحبا", "é", "e\u0301", "naïve", "ÀÉ", "👩\u200d👩", "$1", "<|",
    "<s>", ");\n", "x`", "。\n", "\u3000", "ña",
)  # fmt: skip
CONTROL, USER_DEFINED, UNKNOWN, NORMAL, BYTE = 3, 4, 2, 1, 6


def byte_level(pre: str | None) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary: bytes, prefixes of `_WORDS`, control tokens, and one that users defined."""
    alphabet = bytes_to_unicode()
    tokens, merges = list(alphabet), []
    for word in _WORDS:
        letters = [alphabet[byte] for byte in word.encode()]
        for end in range(1, len(letters)):
            if (token := "".join(letters[: end + 1])) not in tokens:
                tokens.append(token)
                merges.append(f"{''.join(letters[:end])} {letters[end]}")
    special = {"<|begin|>": CONTROL, "<|end|>": CONTROL, "<|user|>": CONTROL, "<tool>": USER_DEFINED}
    kinds = [NORMAL] * len(tokens) + list(special.values())
    return {
        **_tokenizer("gpt2", [*tokens, *special], kinds),
        **({} if pre is None else {"tokenizer.ggml.pre": pre}),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
    }


def bytes_to_unicode() -> list[str]:
    """The letter of each byte in GPT-2's vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


def sentencepiece() -> dict[str, Any]:
    """Metadata of a sentencepiece vocabulary: bytes, and parts of `_WORDS` with scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds, fixed = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256], len(tokens)
    words = [word.replace(" ", "▁") for word in _WORDS if "<" not in word]
    parts = [word[:end] for word in words for end in range(2, len(word) + 1)]
    parts += [word[start:] for word in words for start in range(1, len(word) - 1)]
    tokens += [part for part in dict.fromkeys(parts) if part not in tokens]
    tokens += sorted({letter for word in words for letter in word})
    scores = [0.0] * fixed + [-float(i) for i in range(len(tokens) - fixed)]
    special = {"<|user|>": CONTROL, "<tool>": USER_DEFINED}
    kinds += [NORMAL] * (len(tokens) - fixed) + list(special.values())
    return {
        **_tokenizer("llama", [*tokens, *special], kinds),
        "tokenizer.ggml.scores": scores + [-1000.0] * len(special),
    }


def _tokenizer(kind: str, tokens: list[str], kinds: list[int]) -> dict[str, Any]:
    return {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}


def vocabulary(path: Path, tokenizer: dict[str, Any]) -> None:
    """Writes a file with a vocabulary and without tensors, which llama.cpp can read."""
    names = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")
    plain = {f"llama.{name}": 8 for name in names} | {"llama.attention.layer_norm_rms_epsilon": 1e-5}
    write(path, {"general.architecture": "llama", **plain, **tokenizer}, {})
