"""GGUF, llama.cpp's format: a file's metadata as LlamaConfig, and its tensors under Hugging Face's names.

The header (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) is read here, because the gguf package's own
reader takes 10 s and 660 MB for LLaMA 3's vocabulary, and all memory where the count of a damaged list is too large.
"""

import dataclasses
import functools
import importlib.util
import math
import mmap
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import gguf_tokenizer
from jaxspec.convert.folders import check_present
from jaxspec.convert.hf_config import described, integer, positive
from jaxspec.convert.meta import halves
from jaxspec.convert.readers import Source, Tensor
from jaxspec.model.config import LlamaConfig, Rope
from jaxspec.model.rope import rope_frequencies

_FAMILIES = ("llama", "qwen2", "qwen3")  # Mistral's files have `llama`
_OF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"

# Settings under the architecture's name, such as `llama.rope.freq_base`: those that are read here, and those that are
# not, with the values at which they change nothing.
_READ = {
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon", "rope.freq_base",
    "rope.scaling.factor", "rope.scale_linear", "rope.scaling.original_context_length", "rope.scaling.finetuned",
}  # fmt: skip
_NEUTRAL = {
    "expert_count": (0,), "expert_used_count": (0,), "attention.causal": (True,), "attention.clamp_kqv": (0,),
    "attention.scale": (0,), "attn_logit_softcapping": (0,), "final_logit_softcapping": (0,), "logit_scale": (0, 1),
    "residual_scale": (0, 1), "embedding_scale": (0, 1), "pooling_type": (0,), "use_parallel_residual": (False,),
    "rope.scaling.attn_factor": (1,), "rope.scaling.yarn_log_multiplier": (0,),
    "rope.scaling.type": ("linear", "none"), "tensor_data_layout": ("Meta AI original pth",),
}  # fmt: skip

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # of struct
_STRING, _ARRAY = 8, 9
_MOST = 2**24  # bytes of a text or list of numbers; only damaged headers have more
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_BLOCK = 2**22  # values that are dequantised at once, because the package's temporary arrays are larger than its result


class Gguf(NamedTuple):
    """The header of a file, or of all shards of a model. Tensors have the file's names and NumPy's order of axes."""

    metadata: Mapping[str, Any]
    tensors: Source


def find(source: Path) -> Path | None:
    """The GGUF file that an argument names: itself, or the only model in a folder without other weights, if any."""
    if source.is_file():
        with source.open("rb") as file:  # Ollama's have no suffix
            return source if source.suffix.lower() == ".gguf" or file.read(4) == b"GGUF" else None
    files = sorted(source.glob("*.gguf"))
    if not files or any(any(source.glob(f"*.{suffix}")) for suffix in ("safetensors", "bin", "pth")):
        return None
    models = [file for file in files if (shard := _SHARD.fullmatch(file.name)) is None or int(shard[2]) == 1]
    if len(models) > 1:
        raise CheckpointError(
            f"{source} holds several GGUF models, {', '.join(file.name for file in models)}; name one"
        )
    return (models or files)[0]


def open_gguf(path: Path) -> Gguf:
    """The header of a file, or a CheckpointError. Of a split model any shard can be named, and all must be there."""
    file = _open_file(path)
    if (count := file.metadata.get("split.count", 1)) in (0, 1):  # 0: shards were merged
        return file
    shard = _SHARD.fullmatch(path.name)
    if shard is None or int(shard[3]) != count:
        raise CheckpointError(f"{path} is one of {count} shards, and is not called NAME-00001-of-{count:05}.gguf")
    files = [path.with_name(f"{shard[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"{path} is one of {count} shards, and {missing[0]} is not beside it; download it too")
    opened = [_open_file(file) for file in files]
    return Gguf(opened[0].metadata, {name: tensor for part in opened for name, tensor in part.tensors.items()})


def open_model(path: Path) -> tuple[str, LlamaConfig, dict[str, Any], Source]:
    """Family, shape, special tokens, and tensors with Hugging Face's names and rotary layout; or a CheckpointError."""
    file = open_gguf(path)
    family = file.metadata.get("general.architecture")
    if (kind := file.metadata.get("general.type", "model")) != "model":
        raise CheckpointError(f"{path} is no whole model: its general.type is {kind!r}")
    if family not in _FAMILIES:
        named = str(family)[:80]
        raise CheckpointError(f"{path} has the architecture {named!r}; of GGUF files {', '.join(_FAMILIES)} are read")
    start = f"{family}."
    values = {key.removeprefix(start): value for key, value in file.metadata.items() if key.startswith(start)}
    number = functools.partial(integer, values, file=f"{path.name} ({family})")
    length, hidden, heads = number("context_length"), number("embedding_length"), number("attention.head_count")
    kv_heads = number("attention.head_count_kv", otherwise=heads)
    head_dim = number("attention.key_length", otherwise=max(hidden // heads, 1))
    same = dict.fromkeys(("attention.value_length", "rope.dimension_count"), (head_dim,))
    neutral = {**_NEUTRAL, **same, "attention.sliding_window": (0, length)}
    for key in sorted(values.keys() - _READ):
        if values[key] not in neutral.get(key, ()):
            only = f", only {' and '.join(map(repr, neutral[key]))}" if key in neutral else ""
            raise CheckpointError(f"{path} has {family}.{key} {str(values[key])[:80]}, which is not supported{only}")
    tokens, biased = file.metadata.get("tokenizer.ggml.tokens"), "blk.0.attn_q.bias" in file.tensors
    # llama.cpp rotates the pairs (0, 1), (2, 3), … of these heads, as Meta does.
    rotated = {"attn_q": heads, "attn_k": kv_heads} if family == "llama" else {}
    factors = file.tensors.get(_ROPE_FACTORS) if family == "llama" else None
    config = described(
        f"the metadata of {path}",
        LlamaConfig,
        vocab_size=len(tokens) if isinstance(tokens, list) else number("vocab_size"),
        hidden_size=hidden,
        intermediate_size=number("feed_forward_length"),
        num_layers=number("block_count"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=positive(values, "attention.layer_norm_rms_epsilon", path.name),
        max_length=length,
        rope=_rope(path, values, head_dim, factors),
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias=biased or family == "qwen2",
        output_bias=biased and family != "qwen2",
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=family == "qwen3",
    )
    special = gguf_tokenizer.special_tokens(file.metadata, path.name)
    renamed = dict(_renamed(tensor, rotated) for tensor in file.tensors.values() if tensor is not factors)
    return family, config, special, renamed


def _renamed(tensor: Tensor, rotated: Mapping[str, int]) -> tuple[str, Tensor]:
    """A tensor with Hugging Face's name and rotary layout; `rotated` gives the heads of those in Meta's layout."""
    # `match` refuses an unknown tensor, which keeps its name.
    if (layer := _OF_LAYER.fullmatch(tensor.name)) is None or layer[2] not in _NAMES:
        return _NAMES.get(tensor.name, tensor.name), tensor
    if heads := rotated.get(layer[2]):
        tensor = dataclasses.replace(tensor, read=lambda read=tensor.read: halves(read(), heads))
    return f"model.layers.{layer[1]}.{_NAMES[layer[2]]}.{layer[3]}", tensor


def _rope(path: Path, values: Mapping[str, Any], head_dim: int, factors: Tensor | None) -> Rope:
    """The rope. As in llama.cpp a factor without a type is linear."""
    plain = Rope(theta=positive({"rope.freq_base": 10000.0, **values}, "rope.freq_base", path.name))
    factor = values.get("rope.scaling.factor", values.get("rope.scale_linear")) or 1
    linear = factor != 1 and values.get("rope.scaling.type") != "none"
    scaled = {"scaling": "linear", "factor": factor} if linear else {}
    rope = described(f"the metadata of {path}", Rope, theta=plain.theta, **scaled)
    if factors is None:
        return rope
    # The file does not give the settings of LLaMA 3's scaling; its published models have these.
    published = [dataclasses.replace(plain, scaling="llama3", factor=f, original_length=8192) for f in (8.0, 32.0)]
    for known in (plain, *published) if rope == plain and factors.shape == (head_dim // 2,) else ():
        unscaled = rope_frequencies(known, head_dim) * factors.read().astype(np.float32)
        if np.allclose(unscaled, rope_frequencies(plain, head_dim), rtol=1e-6, atol=0):
            return known
    raise CheckpointError(f"{path} divides rotary frequencies by factors ({_ROPE_FACTORS}) that are not LLaMA 3's")


def _open_file(path: Path) -> Gguf:
    if importlib.util.find_spec("gguf") is None:
        raise CheckpointError(f"reading {path} needs the gguf package: pip install gguf")
    check_present(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _header(data, path)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path} is not a whole GGUF file ({error}); download it again") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _header(data: mmap.mmap, path: Path) -> Gguf:
    if (start := data.read(4)) != b"GGUF":
        raise CheckpointError(f"{path} is no GGUF file: it begins with {start!r}")
    if (version := _numbers(data, "I")[0]) not in (2, 3):
        raise CheckpointError(f"{path} has version {version} of the format; only 2 and 3 in little-endian are read")
    tensors, settings = _numbers(data, "Q", 2)
    metadata, layouts = _named(data, settings, _value), _named(data, tensors, _layout)
    alignment = integer(metadata, "general.alignment", path.name, otherwise=32)
    start = -(-data.tell() // alignment) * alignment
    return Gguf(metadata, {name: _tensor(path, len(data), name, start, *each) for name, each in layouts.items()})


def _take(data: mmap.mmap, count: int) -> bytes:
    if count > min(len(data) - data.tell(), _MOST):
        raise ValueError(f"{count} bytes are expected at byte {data.tell()} of {len(data)}")
    return data.read(count)


def _numbers(data: mmap.mmap, code: str, count: int = 1) -> list[Any]:
    return list(struct.unpack(f"<{count}{code}", _take(data, count * struct.calcsize(f"<{code}"))))


def _text(data: mmap.mmap) -> str:
    return _take(data, *_numbers(data, "Q")).decode()


def _named(data: mmap.mmap, count: int, value: Callable[[mmap.mmap], Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for _ in range(count):
        if (name := _text(data)) in values:
            raise ValueError(f"it has {name} twice")
        values[name] = value(data)
    return values


def _value(data: mmap.mmap) -> Any:
    """A setting. A float is the shortest decimal that rounds to it: 1e-5, not 9.999999747378752e-06."""
    (kind,), count = _numbers(data, "I"), None
    if kind == _ARRAY:
        kind, count = *_numbers(data, "I"), *_numbers(data, "Q")
    if kind == _STRING:
        return _text(data) if count is None else [_text(data) for _ in range(count)]
    if (code := _CODES.get(kind)) is None:
        raise ValueError(f"it has a setting of the type {kind}")
    if count is not None:
        return _numbers(data, code, count)
    (number,) = _numbers(data, code)
    return float(str(np.float32(number))) if code == "f" else number


def _layout(data: mmap.mmap) -> tuple[tuple[int, ...], int, int]:
    """Shape, type and offset of a tensor; the file begins with the last dimension."""
    if not 1 <= (dims := _numbers(data, "I")[0]) <= 4:
        raise ValueError(f"it has a tensor of {dims} dimensions")
    return tuple(reversed(_numbers(data, "Q", dims))), *_numbers(data, "I"), *_numbers(data, "Q")


def _tensor(path: Path, end: int, name: str, start: int, shape: tuple[int, ...], number: int, offset: int) -> Tensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    try:
        kind = GGMLQuantizationType(number)
        values, size = GGML_QUANT_SIZES[kind]
        quants.dequantize(np.zeros((1, size), np.uint8), kind)
    except (ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"tensor {name} in {path} has a type that the gguf package cannot read ({error}); use another file"
        ) from error
    count, offset = math.prod(shape) // values * size, start + offset
    if shape[-1] % values or offset + count > end:
        raise ValueError(f"tensor {name} ends at byte {offset + count} of {end}")
    read = functools.partial(_read, path, offset, count, shape, kind)
    return Tensor(name, shape, _DTYPES.get(kind.name, "float32"), path.name, read)


def _read(path: Path, offset: int, count: int, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    """A tensor: float32, float16 and bfloat16 bit for bit, other types dequantised to float32."""
    from gguf import quants

    stored = np.fromfile(path, np.uint8, count, offset=offset)
    if kind.name in _DTYPES:
        return stored.view(_DTYPES[kind.name]).reshape(shape)
    array = np.empty((math.prod(shape[:-1]), shape[-1]), np.float32)
    stored = stored.reshape(len(array), -1)
    for row in range(0, len(array), step := max(_BLOCK // shape[-1], 1)):
        array[row : row + step] = quants.dequantize(stored[row : row + step], kind)
    return array.reshape(shape)
