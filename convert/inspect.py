"""What a folder holds, from its configs and headers alone."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from rich import filesize

from jaxspec import checkpoint, heads
from jaxspec.checkpoint import CheckpointConfig
from jaxspec.config import LlamaConfig
from jaxspec.convert import eagle, kinds, llama
from jaxspec.convert.names import theirs
from jaxspec.convert.readers import format_of, read_json
from jaxspec.convert.tokenizer import has_tokenizer
from jaxspec.heads import HeadConfig


def describe(path: Path) -> str:
    """`key: value` lines: format, family, shape, dtype, parameters, tokenizer, heads.

    Raises:
        CheckpointError: the folder is none of the kinds, or one that conversion would refuse.
    """
    ours = format_of(path)
    if ours == checkpoint.FORMAT:
        return _lines(_of_checkpoint(path))
    if ours == heads.FORMAT:
        return _lines(_of_head(path))
    return _lines(_of_published_head(path) if _is_published_head(path) else _of_source(path))


def _of_checkpoint(path: Path) -> Iterable[tuple[str, Any]]:
    config, shapes = checkpoint.read_config(path), checkpoint.read_shapes(path / "params")
    checkpoint.check_names(checkpoint.module_to_dict(checkpoint.abstract(config.model)), shapes, str(path / "params"))
    yield "format", f"jaxspec checkpoint, converted from {config.source_format} in {config.source_dtype}"
    yield from _of_config(config)
    yield from _of_tensors({name: (leaf.shape, str(leaf.dtype)) for name, leaf in shapes.items()})
    yield "tokenizer", "yes" if has_tokenizer(path) else "none"
    yield "heads", ", ".join(checkpoint.heads(path)) or "none"


def _of_source(path: Path) -> Iterable[tuple[str, Any]]:
    plan = llama.plan(path)
    yield "format", {"huggingface": "Hugging Face", "meta": "Meta"}[plan.scheme]
    yield from _of_config(plan.config)
    yield from _of_tensors({theirs(n, plan.scheme): (t.shape, t.dtype) for n, t in plan.tensors.items()})
    yield "files", ", ".join(sorted({tensor.file for tensor in plan.tensors.values()}))
    yield "tokenizer", "yes" if has_tokenizer(path) else "none"


def _of_head(path: Path) -> Iterable[tuple[str, Any]]:
    config, shapes = heads.read_config(path), checkpoint.read_shapes(path / "params")
    yield "format", f"jaxspec head for the drafter {config.drafter}, exported in {config.source_dtype}"
    yield from _of_settings(config)
    yield from _of_tensors({name: (leaf.shape, str(leaf.dtype)) for name, leaf in shapes.items()})


def _is_published_head(path: Path) -> bool:
    """Whether it is one of any kind; what is neither head nor model is left to be refused as a model."""
    config_file = path / "config.json"
    return config_file.is_file() and kinds.kind_of(path, read_json(config_file)) not in ("model", "unknown")


def _of_published_head(path: Path) -> Iterable[tuple[str, Any]]:
    plan = eagle.plan(path)
    yield "format", "EAGLE head, of EAGLE-1 or EAGLE-2"
    yield from _of_settings(plan.config)
    yield from _of_tensors({eagle.published(n): (t.shape, t.dtype) for n, t in plan.tensors.items()})
    yield "files", ", ".join(sorted({tensor.file for tensor in plan.tensors.values()}))


def _of_settings(config: HeadConfig) -> Iterable[tuple[str, Any]]:
    yield from _of_model(config.model)
    for name, value in config.settings.items():
        yield name.replace("_", " "), {True: "yes", False: "no"}.get(value, value)


def _of_config(config: CheckpointConfig) -> Iterable[tuple[str, Any]]:
    yield "family", config.family
    yield from _of_model(config.model)
    yield "end of sequence", ", ".join(map(str, config.eos)) or "none"


def _of_model(c: LlamaConfig) -> Iterable[tuple[str, Any]]:
    yield "layers", c.num_layers
    yield "hidden size", c.hidden_size
    yield "MLP size", c.intermediate_size
    yield "heads of attention", f"{c.num_heads} queries, {c.num_kv_heads} keys and values, {c.head_dim} wide"
    yield "vocabulary", f"{c.vocab_size}, embedding {'tied' if c.tie_embeddings else 'not tied'}"
    scaling = "" if c.rope.scaling == "none" else f", {c.rope.scaling} scaling by {c.rope.factor:g}"
    yield "positions", f"{c.max_length}, rope theta {c.rope.theta:g}{scaling}"


def _of_tensors(tensors: dict[str, tuple[tuple[int, ...], str]]) -> Iterable[tuple[str, Any]]:
    kinds = Counter(dtype for _, dtype in tensors.values())
    count = sum(math.prod(shape) for shape, _ in tensors.values())
    size = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in tensors.values())
    yield "dtype", ", ".join(f"{dtype} ({n} tensors)" for dtype, n in kinds.most_common())
    yield "parameters", f"{count:,} ({filesize.decimal(size)})"
    for name, (shape, _) in tensors.items():
        if "layers." not in name or "layers.0." in name:
            yield f"  {name}", list(shape)


def _lines(pairs: Iterable[tuple[str, Any]]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in pairs)
