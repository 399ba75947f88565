"""Hugging Face or Meta folder, or GGUF file → jaxspec checkpoint: plan from the headers alone, then stream the tensors.

Everything that can be known without reading a weight is checked before the first byte is written.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.checkpoint import config_json, memory, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import experts, gguf, gguf_tokenizer, hf_config, meta, tokenizer
from jaxspec.convert.names import IGNORED, Scheme, theirs
from jaxspec.convert.readers import Source, Tensor, check_dtypes, open_directory, read_config, read_json
from jaxspec.convert.transfer import main_dtype, match, total_bytes, write_params
from jaxspec.host import processes
from jaxspec.host.atomic import staged_by_all
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig
from jaxspec.model.quantization import check as check_quantization


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The planned checkpoint: its config, and the source tensor of each of jaxspec's parameters."""

    config: CheckpointConfig
    tensors: dict[str, Tensor]
    scheme: Scheme


def convert(
    source: Path,
    out: Path,
    dtype: str | None = None,
    tokenizer_from: Path | None = None,
    quantize: str | None = None,
) -> CheckpointConfig:
    """Converts a folder into the checkpoint `out`. With several processes, all must call this.

    Args:
        source: a Hugging Face or Meta folder, a GGUF file, or a folder that holds one.
        out: folder to make; must not exist.
        dtype: dtype of every parameter; None keeps each tensor's own.
        tokenizer_from: folder with a Hugging Face tokenizer to copy in place of the source's.
        quantize: `int8` or `int4` kernels (see `model/quantization.py`); None: floats.

    Raises:
        ValueError: `quantize` is not valid, Qwix is not installed, or `out` exists.
        CheckpointError: the source is invalid or not supported; nothing is left at `out`.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    check_quantization(quantize)
    planned = plan(source)
    config = dataclasses.replace(planned.config, dtype=dtype or planned.config.dtype, quantize=quantize)
    tokenizer.check_readable(tokenizer_from or source)
    file = gguf.find(source) if tokenizer_from is None else None
    built = {} if file is None else gguf_tokenizer.files(gguf.open_gguf(file).metadata, file.name)
    with staged_by_all(out, total_bytes(planned.tensors, dtype, quantize)) as folder:
        if processes.is_first():
            scheme = planned.scheme if tokenizer_from is None else "huggingface"
            for name, text in built.items():
                (folder / name).write_text(text, encoding="utf-8")
            if not built:
                tokenizer.bring(tokenizer_from or source, folder, scheme)
        write_params(planned.tensors, dtype, source, folder, out, quantize)
        if processes.is_first():  # written last: it marks the checkpoint as complete
            config_json.write_config(folder, config)
    kinds = ", ".join(filter(None, (config.dtype, quantize)))
    say(f"wrote {out}: {config.family}, {memory.parameter_count(config.model):,} parameters, {kinds}")
    return config


def plan(source: Path) -> Conversion:
    """Reads configs and headers and checks them against each other. Raises CheckpointError."""
    if (file := gguf.find(source)) is not None:
        opened = gguf.open_gguf(file)
        model, family, tensors = gguf.to_llama(opened)
        tokens, scheme = gguf_tokenizer.special_tokens(opened.metadata, file.name), "huggingface"
    elif meta.is_meta(source):
        model, tensors = meta.open_meta(source)
        family, tokens, scheme = "llama", meta.special_tokens(model), "meta"
    else:
        model, family, tokens, tensors, scheme = *_huggingface(source), "huggingface"
    matched = _match(model, tensors, scheme, source)
    dtype = main_dtype(matched.values())
    config = CheckpointConfig(family, model, dtype, dtype, "gguf" if file else scheme, **tokens)
    return Conversion(config, matched, scheme)


def _huggingface(source: Path) -> tuple[LlamaConfig, str, dict[str, Any], Source]:
    raw = read_config(source)
    generation_file = source / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    if (penalty := generation.get("repetition_penalty") or 1) != 1:
        say(f"warning: {generation_file} asks for repetition_penalty {penalty}, which jaxspec does not apply")
    model, tensors = hf_config.to_llama(raw), open_directory(source)
    check_dtypes(tensors)
    return model, hf_config.family(raw), hf_config.special_tokens(raw, generation, model.vocab_size), tensors


def _match(model: LlamaConfig, tensors: Source, scheme: Scheme, source: Path) -> dict[str, Tensor]:
    """The source tensor of each of jaxspec's parameters."""
    found = {name: tensor for name, tensor in tensors.items() if not IGNORED.fullmatch(name)}
    if max(model.num_layers, model.num_experts) > len(found):  # checking so many names would take long
        raise CheckpointError(
            f"{source} says {model.num_layers} layers (and {model.num_experts} experts), and its files hold "
            f"{len(found)} tensors: they are incomplete, or their config is another model's"
        )
    if model.num_experts:
        found = experts.join(found, model.num_experts, str(source))
    head = found.pop(theirs("head.kernel", scheme), None) if model.tie_embeddings else None
    matched = match(parameters.abstract(model), found, lambda ours: theirs(ours, scheme), str(source))
    if head is not None and not np.array_equal(head.read(), matched["embedding"].read()):
        raise CheckpointError(
            f"{source} says tie_word_embeddings, but its {head.name} differs from the embedding; "
            "set tie_word_embeddings to false in config.json if the head is meant"
        )
    return matched
