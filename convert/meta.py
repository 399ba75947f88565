"""Meta's format: `params.json` and `consolidated.*.pth`, one file per shard of tensor parallelism. Mistral's has other
settings and `consolidated.safetensors`. Both are read as whole tensors in Hugging Face's rotary layout.
"""

import functools
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.folders import read_json, weights_file
from jaxspec.convert.hf_config import described, integer, positive
from jaxspec.convert.names import Row, meta_row, unprefixed
from jaxspec.convert.readers import Source, Tensor, open_file_or_shards, same
from jaxspec.model.config import LlamaConfig, Rope

_KNOWN = {  # Meta's, and then Mistral's
    "dim", "n_layers", "n_heads", "n_kv_heads", "norm_eps", "multiple_of", "ffn_dim_multiplier", "rope_theta",
    "use_scaled_rope", "vocab_size", "max_seq_len", "max_batch_size",
    "head_dim", "hidden_dim", "tied_embeddings", "max_position_embeddings", "dtype",
}  # fmt: skip
_ONLY = {"model_type": "transformer", "activation": "silu"}  # Mistral's, at the values that change nothing
_integer = functools.partial(integer, file="params.json")
_positive = functools.partial(positive, file="params.json")


def is_meta(path: Path) -> bool:
    """Whether a folder is one of Meta's or Mistral's releases, and holds no weights in Hugging Face's format."""
    if not (path / "params.json").is_file():
        return False
    return not (path / "config.json").exists() or (any(path.glob("consolidated*")) and weights_file(path) is None)


def open_model(path: Path) -> tuple[str, LlamaConfig, dict[str, Any], Source]:
    """Family, shape, special tokens and tensors of a folder of Meta's or Mistral's, or a CheckpointError."""
    params = read_json(path / "params.json")
    _refuse(params)
    torch_files, single = sorted(path.glob("consolidated.*.pth")), path / "consolidated.safetensors"
    files = [*torch_files, *[single] * any(path.glob("consolidated*.safetensors"))]
    if not files or (single in files and torch_files):
        found = f"{files[0].name} and {single.name}" if files else f"no consolidated.*.pth and no {single.name}"
        raise CheckpointError(f"{path} has params.json and {found}; it must have one of them, whole")
    shards = [unprefixed(open_file_or_shards(file), path, ["tok_embeddings.weight"]) for file in files]
    for file, shard in zip(files, shards, strict=True):
        if wrong := sorted(shard.keys() ^ shards[0].keys()):
            raise CheckpointError(f"tensor {wrong[0]} is not in both {files[0].name} and {file.name} of {path}")
    rows = {name: meta_row(name) for name in shards[0]}
    if unknown := [name for name, row in rows.items() if row is None]:
        raise CheckpointError(f"tensor {unknown[0]} in {files[0]} is not part of a LLaMA; is this another model?")
    for name in ("tok_embeddings.weight", "layers.0.feed_forward.w1.weight"):
        if name not in shards[0]:
            raise CheckpointError(f"tensor {name} is missing in {files[0]}")

    dim, heads = _integer(params, "dim"), _integer(params, "n_heads")
    kv_heads = _integer(params, "n_kv_heads", otherwise=heads)
    source = {
        name: _join(name, row, [shard[name] for shard in shards], dim, {"q": heads, "k": kv_heads})
        for name, row in rows.items()
        if row is not None
    }
    family = "mistral" if _is_mistral(params) else "llama"
    if family == "mistral" and "output.weight" not in source and not params.get("tied_embeddings"):
        raise CheckpointError(f"tensor output.weight is missing in {files[0]}, and params.json has no tied_embeddings")
    config = _config(params, source)
    return family, config, special_tokens(family, config), source


def _is_mistral(params: Mapping[str, Any]) -> bool:
    """Whether a params.json is Mistral's: it gives the width of the MLP, which Meta's derives."""
    return params.get("hidden_dim") is not None


def special_tokens(family: str, config: LlamaConfig) -> dict[str, Any]:
    """The special tokens of Meta's and Mistral's tokenizers, with the chat models' EOS, which no file contains."""
    if family == "llama" and config.vocab_size >= 128256:  # LLaMA 3's
        return {"bos": 128000, "eos": (128001, 128008, 128009)}
    return {"bos": 1, "eos": (2,)}


def _refuse(params: Mapping[str, Any]) -> None:
    """Raises CheckpointError for settings that are unknown or would change the computation."""
    set_ = {key: value for key, value in params.items() if value is not None and _ONLY.get(key, ()) != value}
    if unknown := sorted(set_.keys() - _KNOWN):
        raise CheckpointError(
            f"params.json has {unknown[0]!r}: {reprlib.repr(set_[unknown[0]])}, which is not supported; convert the "
            "model's Hugging Face release"
        )
    if _is_mistral(params) and params.get("rope_theta") is None:
        raise CheckpointError(
            "params.json has no 'rope_theta', on whose default projects disagree; convert the Hugging Face release"
        )


def _config(params: Mapping[str, Any], source: Source) -> LlamaConfig:
    dim, heads = _integer(params, "dim"), _integer(params, "n_heads")
    embedding = source["tok_embeddings.weight"]
    output = source.get("output.weight")
    return described(
        "params.json",
        LlamaConfig,
        vocab_size=embedding.shape[0] if params.get("vocab_size") in (None, -1) else _integer(params, "vocab_size"),
        hidden_size=dim,
        intermediate_size=_intermediate(params, source),
        num_layers=_integer(params, "n_layers"),
        num_heads=heads,
        num_kv_heads=_integer(params, "n_kv_heads", otherwise=heads),
        head_dim=_integer(params, "head_dim", otherwise=dim // heads),
        norm_eps=_positive(params, "norm_eps"),
        max_length=_max_length(params),
        rope=_rope(params),
        # LLaMA 3.2 1B and 3B store their tied embedding twice.
        tie_embeddings=output is None or same(embedding, output),
    )


def _intermediate(params: Mapping[str, Any], source: Source) -> int:
    """Width of the MLP: Mistral's, or 2/3 of 4 x dim, times a multiplier, rounded up, or else the tensor's width."""
    if _is_mistral(params):
        return _integer(params, "hidden_dim")
    if "multiple_of" not in params:
        return source["layers.0.feed_forward.w1.weight"].shape[0]
    multiple = _integer(params, "multiple_of")
    width = int(2 * 4 * params["dim"] / 3)
    if params.get("ffn_dim_multiplier") is not None:
        width = int(_positive(params, "ffn_dim_multiplier") * width)
    return -(-width // multiple) * multiple


def _max_length(params: Mapping[str, Any]) -> int:
    """Number of positions; if the files do not contain it, derived from properties of each release."""
    if params.get("max_seq_len") is not None:
        return _integer(params, "max_seq_len")
    if _is_mistral(params):
        return _integer(params, "max_position_embeddings", otherwise=32768)  # as transformers' converter
    if params.get("use_scaled_rope"):
        return 131072  # LLaMA 3.1 and later
    by_theta = {500000.0: 8192, 1000000.0: 16384}  # LLaMA 3; Code LLaMA
    # LLaMA 1 up to 33B differs from LLaMA 2 in its epsilon; its 65B differs from the 70B, which has grouped heads.
    first = params["norm_eps"] == 1e-6 or (params["n_layers"] == 80 and not params.get("n_kv_heads"))
    return by_theta.get(_theta(params), 2048 if first else 4096)


def _rope(params: Mapping[str, Any]) -> Rope:
    if not params.get("use_scaled_rope"):
        return Rope(theta=_theta(params))
    # The files do not contain the factor. In Meta's config.json it is 32 for LLaMA 3.2 1B and 3B, whose widths are 2048
    # and 3072, and 8 for LLaMA 3.1 and 3.3.
    factor = 32.0 if params["dim"] in (2048, 3072) else 8.0
    return Rope(theta=_theta(params), scaling="llama3", factor=factor, original_length=8192)


def _join(name: str, row: Row, parts: list[Tensor], dim: int, heads: Mapping[str, int]) -> Tensor:
    """The whole tensor, from the list of its shards."""
    axis, first = row.join, parts[0]
    if row.ours == "embedding" and len(parts) > 1 and first.shape[-1] != dim:
        axis = 1  # LLaMA 1 and 2 split the embedding by features, LLaMA 3 by tokens
    other = lambda part: (len(part.shape), part.dtype, axis is not None and part.shape[:axis] + part.shape[axis + 1 :])
    if any(other(part) != other(first) for part in parts) or (len(parts) > 1 and (axis or 0) >= len(first.shape)):
        shapes = ", ".join(f"{part.dtype} {list(part.shape)}" for part in parts)
        raise CheckpointError(f"the shards of tensor {name} in {first.file} and the other files do not join: {shapes}")
    shape = first.shape
    if axis is not None:
        shape = (*shape[:axis], sum(part.shape[axis] for part in parts), *shape[axis + 1 :])

    def read() -> np.ndarray:
        whole = first.read() if axis is None or len(parts) == 1 else np.concatenate([p.read() for p in parts], axis)
        rotary = row.ours.rpartition(".")[2]
        return halves(whole, heads[rotary]) if rotary in heads else whole

    return Tensor(name, shape, first.dtype, first.file, read)


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of wq or wk, or their biases, in each head: from Meta's rotated pairs to rotated halves."""
    return weight.reshape(heads, len(weight) // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _theta(params: Mapping[str, Any]) -> float:
    return 10000.0 if params.get("rope_theta") is None else _positive(params, "rope_theta")
