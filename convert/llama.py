"""Hugging Face or Meta folder, or GGUF file → jaxspec checkpoint: plan from the headers alone, then stream the tensors.

Everything that can be known without reading a weight is checked before the first byte is written.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from rich import filesize

from jaxspec.checkpoint import config_json, heads, memory, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import gguf, head_kinds, hf_config, meta, readers, tokenizer, transfer
from jaxspec.convert.folders import format_of, read_config, read_json, weights_file
from jaxspec.convert.names import MEDUSA, theirs, unprefixed
from jaxspec.convert.readers import Source, Tensor, open_directory
from jaxspec.host import processes
from jaxspec.host.atomic import check_room, staged, staged_by_all
from jaxspec.host.terminal import progress, say
from jaxspec.model.config import LlamaConfig
from jaxspec.model.quantization import check as check_quantization


class Conversion(NamedTuple):
    """The planned checkpoint: its config, and the source tensor of each of jaxspec's parameters."""

    config: CheckpointConfig
    tensors: dict[str, Tensor]


def convert(
    source: Path, out: Path, dtype: str | None = None, tokenizer_from: Path | None = None, quantize: str | None = None
) -> CheckpointConfig:
    """Collective: converts a Hugging Face or Meta folder, a GGUF file, or a folder with one, into the checkpoint `out`.

    Args:
        dtype: dtype of every parameter; None keeps each tensor's own.
        tokenizer_from: folder with a Hugging Face tokenizer to copy in place of the source's.
        quantize: `int8` or `int4` kernels (see `model/quantization.py`); None: floats.

    Raises:
        ValueError: `quantize` is not valid, Qwix is not installed, or `out` exists.
        CheckpointError: the source is invalid or not supported.
    """
    check_quantization(quantize)
    planned, tensors = plan(source, dtype)
    config = dataclasses.replace(planned, dtype=dtype or planned.dtype, quantize=quantize)
    tokenizer.check_readable(source, tokenizer_from)
    with staged_by_all(out, transfer.total_bytes(tensors, dtype, quantize)) as folder:
        if processes.is_first():
            config = dataclasses.replace(config, tokenizer_class=tokenizer.copy_or_make(source, folder, tokenizer_from))
        transfer.write_params(tensors, dtype, source, folder, out, quantize)
        if processes.is_first():  # written last: it marks the checkpoint as complete
            config_json.write_config(folder, config)
    say_written(out, config)
    return config


def say_written(out: Path, config: CheckpointConfig) -> None:
    kinds = ", ".join(filter(None, (config.dtype, config.quantize)))
    say(f"wrote {out}: {config.family}, {memory.parameter_count(config.model):,} parameters, {kinds}")


def plan(source: Path, dtype: str | None = None, weights: Source | None = None) -> Conversion:
    """The checkpoint's config and the tensor of each parameter, from configs and headers alone; or a CheckpointError.

    `dtype` is that of the parameters; with one, float64 is read too. `weights` replace those of a Hugging Face folder.
    """
    try:
        if weights is None and (file := gguf.find(source)) is not None:
            form, (family, model, tokens, tensors) = "gguf", gguf.open_model(file)
        elif weights is None and meta.is_meta(source):
            form, (family, model, tokens, tensors) = "meta", meta.open_model(source)
        else:
            form, (family, model, tokens, tensors) = "huggingface", _open_huggingface(source, weights)
        readers.check_dtypes(tensors, () if dtype is None else ("float64",))
        matched = _match(model, tensors, functools.partial(theirs, in_meta=form == "meta"), source)
    except CheckpointError as error:
        head = _head_in(source) if weights is None else ""
        raise CheckpointError(head or str(error)) from error
    stored = transfer.main_dtype(matched.values())
    if stored == "float64":
        stored = dtype or stored
    return Conversion(CheckpointConfig(family, model, stored, stored, form, **tokens), matched)


def _head_in(source: Path) -> str:
    """What to do with a folder that holds a head and no model; empty for other folders."""
    try:
        kind = head_kinds.kind_of(source)
        tensors = open_directory(source) if weights_file(source) else ()
    except CheckpointError:
        return ""
    holds = lambda end: any(f".{name}".endswith(f".{end}") for name in tensors)
    if kind == "medusa":  # its heads may be beside their model
        is_head = not holds("embed_tokens.weight")
    else:
        is_head = kind in ("eagle", "eagle3", "dflash") and holds("fc.weight")
    return f"{source} holds a draft head ({kind}) and no model; use `jaxspec-convert head`" if is_head else ""


def _open_huggingface(source: Path, weights: Source | None) -> tuple[str, LlamaConfig, dict[str, Any], Source]:
    """Family, shape, special tokens and tensors of a Hugging Face folder; `weights` as in `plan`."""
    raw = read_config(source)
    generation_file = source / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else None
    model, family = hf_config.to_llama(raw), hf_config.family(raw)
    if raw.get("auto_map"):
        say(f"warning: {source / 'config.json'} names code of its own (auto_map), which is not run: a {family} is read")
    tokens = hf_config.special_tokens(raw, generation or {}, family, model.vocab_size)
    hf_config.warn_of_unapplied_settings(raw, generation, source)
    tensors = _unprefixed(open_directory(source) if weights is None else weights, source)
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(MEDUSA)}
    if own and len(own) < len(tensors):
        say(f"{source} holds Medusa heads too, which `jaxspec-convert head` reads; only the model is converted")
    return family, model, tokens, own


def _unprefixed(tensors: Source, source: Path) -> dict[str, Tensor]:
    """Tensors by the names of a model with its LM head, also if it was saved from the class without one."""
    embedding = theirs("embedding")
    if embedding in (whole := unprefixed(tensors, source, [embedding])):
        return whole
    base = unprefixed(tensors, source, ["embed_tokens.weight"])
    if "embed_tokens.weight" not in base:
        return whole
    return {name if name.startswith("lm_head.") else f"model.{name}": tensor for name, tensor in base.items()}


def _match(model: LlamaConfig, found: Source, name_of: Callable[[str], str], source: Path) -> dict[str, Tensor]:
    if max(model.num_layers, model.num_experts) > len(found):  # checking so many names would take long
        raise CheckpointError(
            f"{source} has {model.num_layers} layers (and {model.num_experts} experts), and its files hold "
            f"{len(found)} tensors; {parameters.INCOMPLETE}"
        )
    if model.num_experts:
        found = transfer.join_experts(found, model.num_experts, str(source))
    rest = dict(found)
    head = rest.pop(name_of("head.kernel"), None) if model.tie_embeddings else None
    matched = transfer.match(parameters.abstract(model), rest, name_of, str(source))
    if head is not None and not np.array_equal(head.read(), matched["embedding"].read()):
        raise CheckpointError(
            f"{source} sets tie_word_embeddings, but {head.name} differs from the embedding; set it to false"
        )
    return matched


def export(source: Path, out: Path, shard_bytes: int = 5 * 10**9) -> None:
    """Writes a target as a Hugging Face folder, bit for bit unless conversion reduced it. Raises CheckpointError."""
    if format_of(source) == heads.FORMAT:
        raise CheckpointError(f"{source} is a head, which the other formats write; --format hf takes a checkpoint")
    config = config_json.read_config(source)
    if config.quantize is not None:
        raise CheckpointError(
            f"{source} holds {config.quantize} weights; export a checkpoint that was converted without --quantize"
        )
    stored = parameters.read_shapes(source / "params", parameters.abstract(config.model))
    dtype_of = lambda meta: np.dtype(meta.dtype if config.dtype == config.source_dtype else config.source_dtype)
    sizes = {name: math.prod(meta.shape) * dtype_of(meta).itemsize for name, meta in stored.items()}
    total = sum(sizes.values())
    shards = split_state_dict_into_shards_factory(
        {name: sizes[name] for name in sorted(sizes, key=parameters.natural)},
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    title = f"exporting {source.name or source}:"
    with staged(out, total) as folder, progress(title, total, form=filesize.decimal) as shown:
        values = hf_config.from_checkpoint(config)
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")  # transformers looks for them in a file of their own
        given = {key: value for key in ids if (value := {**values, "pad_token_id": config.pad}[key]) is not None}
        transfer.write_json(folder / "generation_config.json", given)
        tokenizer.copy(source, folder)
        weight_map = {}
        for file, names in shards.filename_to_tensors.items():
            check_room(out, total - shown.done)
            arrays = transfer.read_back(source, names, config)
            written = transfer.write_tensors(folder / file, arrays, theirs)
            del arrays
            weight_map |= dict.fromkeys(written, file)
            shown.advance(sum(sizes[name] for name in names))
        # EAGLE's own code finds the target's embedding by the index, even if there is only one file.
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        transfer.write_json(folder / "model.safetensors.index.json", index)
        transfer.write_json(folder / "config.json", values)
    files = f"{len(shards.filename_to_tensors)} safetensors file{'s' * shards.is_sharded}"
    say(f"wrote {out}: {config.family}, {files}, {config.source_dtype}")
