"""Describes a folder's content from its configs and headers alone."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import filesize

from jaxspec.checkpoint import checksums, config_json, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import gguf, head_kinds, llama
from jaxspec.convert import heads as published_heads
from jaxspec.convert.folders import format_of
from jaxspec.convert.names import theirs
from jaxspec.convert.readers import Tensor
from jaxspec.convert.tokenizer import has_tokenizer
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters import DRAFTERS, LayerSkip, draft_vocabulary
from jaxspec.drafters.dflash import Dflash, DflashOptions
from jaxspec.engine.head_weights import abstract_head
from jaxspec.host.terminal import progress, say
from jaxspec.model.config import LlamaConfig


def describe(path: Path) -> str:
    """Lines `key: value`: format, family, shape, dtype, parameters, tokenizer, heads; or a CheckpointError."""
    of_kind: dict[str, Callable[[Path], Iterable[tuple[str, Any]]]] = {
        config_json.FORMAT: _of_checkpoint,
        heads.FORMAT: _of_head,
        "model": _of_source,  # it raises the error of what is none
        "unknown": _of_source,
    }
    kind = format_of(path) or (head_kinds.kind_of(path) if (path / "config.json").is_file() else "model")
    return "\n".join(f"{key}: {value}" for key, value in of_kind.get(kind, _of_published_head)(path))


def verify(path: Path) -> None:
    """Compares all parameters at `path`, those of heads too, with their checksums. Raises CheckpointError."""
    if format_of(path) is None:
        raise CheckpointError(f"{path} is not a jaxspec checkpoint or head, and only these have checksums")
    with progress("checking:", size := checksums.size(path), form=filesize.decimal) as shown:
        count = checksums.verify(path, shown.advance)
    say(f"{count} parameter files ({filesize.decimal(size)}) match their checksums")


def _of_checkpoint(path: Path) -> Iterable[tuple[str, Any]]:
    config = config_json.read_config(path)
    shapes = parameters.read_shapes(path / "params", parameters.abstract(config.model, config.quantize))
    origin = "trained by jaxspec"
    if config.source_format != config_json.FORMAT:
        origin = f"converted from {config.source_format}"
    yield "format", f"jaxspec checkpoint, {origin} in {config.source_dtype}"
    yield from _of_config(config)
    yield "quantised", config.quantize or "no"
    yield from _of_tensors(shapes)
    yield "tokenizer", "yes" if has_tokenizer(path) else "none"
    yield "heads", ", ".join(config_json.head_names(path)) or "none"


def _of_source(path: Path) -> Iterable[tuple[str, Any]]:
    plan = llama.plan(path)
    names = {"huggingface": "Hugging Face", "meta": "Meta or Mistral", "gguf": "GGUF"}
    yield "format", names[plan.config.source_format]
    yield from _of_config(plan.config)
    yield from _of_files(plan.tensors, lambda ours: theirs(ours, plan.config.source_format == "meta"))
    inside = (file := gguf.find(path)) is not None and "tokenizer.ggml.tokens" in gguf.open_gguf(file).metadata
    yield "tokenizer", "yes" if inside or has_tokenizer(path) else "none"


def _of_head(path: Path) -> Iterable[tuple[str, Any]]:
    config = heads.read_config(path)
    trained = config.settings.get("trained", False) or config.settings.get("draft_vocabulary") is not None
    shapes = parameters.read_shapes(path / "params") if trained or config.drafter != LayerSkip.name else {}
    try:
        draft_vocabulary.check(config.settings, config.model.vocab_size)
    except ValueError as error:
        raise CheckpointError(f"the head at {path} {error}") from error
    if config.drafter in DRAFTERS:
        abstract_head(path, DRAFTERS[config.drafter](), HeadShape(config.model, config.settings))
    yield "format", f"jaxspec head for the drafter {config.drafter}, exported in {config.source_dtype}"
    if config.drafter == Dflash.name:
        yield "kind", DflashOptions.from_settings(config.settings).kind
    if any("layer" in name for name in shapes):
        yield from _of_model(config.model)
    else:
        yield from _of_widths(config.model.hidden_size, config.model.vocab_size)
    yield from _of_settings(config.settings, config.model.vocab_size)
    if shapes:
        yield from _of_tensors(shapes)


def _of_published_head(path: Path) -> Iterable[tuple[str, Any]]:
    head = published_heads.plan(path)
    yield "format", head.title if head.taps is None else f"{head.title}, in the layout of {head.config.layout}"
    yield from _of_widths(head.hidden_size, head.vocab_size) if head.model is None else _of_model(head.model)
    if (taps := head.taps) is not None:
        count = head.config.raw.get("num_target_layers")
        known = count is not None or not callable(taps.layers)
        yield "taps", f"{_listed(taps.of(count or 0)) if known else 'by the target'} ({taps.reason})"
    yield from _of_settings(head.settings, head.vocab_size)
    yield from _of_files(head.tensors, head.published)


def _of_settings(settings: dict[str, Any], vocab_size: int) -> Iterable[tuple[str, Any]]:
    for name, value in settings.items():
        if name == "draft_vocabulary":  # the mask has thousands of digits
            value = f"{draft_vocabulary.size_of(value, vocab_size)} of {vocab_size}"
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, list):
            value = _listed(value)
        if value != "":
            yield name.replace("_", " "), value


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _of_config(config: config_json.CheckpointConfig) -> Iterable[tuple[str, Any]]:
    yield "family", config.family
    yield from _of_model(config.model)
    yield "end of sequence", ", ".join(map(str, config.eos)) or "none"


def _of_widths(hidden_size: int, vocab_size: int) -> Iterable[tuple[str, Any]]:
    """Lines for a head without decoder layers."""
    yield "hidden size", hidden_size
    yield "vocabulary", vocab_size


def _of_model(c: LlamaConfig) -> Iterable[tuple[str, Any]]:
    yield "layers", c.num_layers
    yield "hidden size", c.hidden_size
    yield "MLP size", c.intermediate_size
    if c.num_experts:
        yield "experts", f"{c.num_experts} per layer, {c.experts_per_token} per token"
    yield "attention heads", f"{c.num_heads} query heads, {c.num_kv_heads} KV heads, head size {c.head_dim}"
    yield "vocabulary", f"{c.vocab_size}, embedding {'tied' if c.tie_embeddings else 'not tied'}"
    scaling = "" if c.rope.scaling == "none" else f", {c.rope.scaling} scaling by {c.rope.factor:g}"
    yield "positions", f"{c.max_length}, rope theta {c.rope.theta:g}{scaling}"


def _of_tensors(tensors: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    dtypes = Counter(str(tensor.dtype) for tensor in tensors.values())
    count = sum(math.prod(tensor.shape) for tensor in tensors.values())
    size = sum(math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize for tensor in tensors.values())
    yield "dtype", ", ".join(f"{dtype} ({n} tensors)" for dtype, n in dtypes.most_common())
    yield "parameters", f"{count:,} ({filesize.decimal(size)})"
    for name, tensor in tensors.items():
        if "layers." not in name or "layers.0." in name:
            yield f"  {name}", list(tensor.shape)


def _of_files(tensors: dict[str, Tensor], theirs: Callable[[str], str]) -> Iterable[tuple[str, Any]]:
    """Lines for tensors to convert, by their names in the files."""
    yield from _of_tensors({theirs(ours): tensor for ours, tensor in tensors.items()})
    yield "files", ", ".join(sorted({tensor.file for tensor in tensors.values()}))
