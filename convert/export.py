"""jaxspec checkpoint → Hugging Face folder: safetensors, sharded above 5 GB, in the source's dtype."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from huggingface_hub import split_state_dict_into_shards_factory
from rich import filesize

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import experts, hf_config, tokenizer
from jaxspec.convert.names import theirs, turned
from jaxspec.convert.readers import format_of
from jaxspec.drafters import Dflash, Eagle3
from jaxspec.host.atomic import check_room, staged
from jaxspec.host.progress import progress
from jaxspec.host.terminal import say


def export(source: Path, out: Path, shard_bytes: int = 5 * 10**9) -> None:
    """Writes the target of a checkpoint as a Hugging Face folder, without its heads.

    The tensors equal the converted ones bit for bit, unless conversion reduced their precision.

    Raises:
        CheckpointError: `source` is not a checkpoint, or is quantised; nothing is left at `out`.
        ValueError: `out` exists.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    if format_of(source) == heads.FORMAT:
        raise CheckpointError(
            f"{source} is a head, which --format eagle, eagle3, dflash, speculators or medusa writes; --format hf "
            "takes a checkpoint"
        )
    config = config_json.read_config(source)
    if config.quantize is not None:
        raise CheckpointError(
            f"{source} holds {config.quantize} weights, so the original weights are lost; export a checkpoint that "
            "was converted without --quantize"
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
        write_json(folder / "generation_config.json", _generation(config))
        tokenizer.copy(source, folder)
        weight_map = {}
        for file, names in shards.filename_to_tensors.items():
            check_room(out, total - shown.done)
            arrays = read_back(source, names, config)
            written = write_tensors(folder / file, arrays, lambda name: theirs(name, "huggingface"))
            del arrays
            weight_map |= dict.fromkeys(written, file)
            shown.advance(sum(sizes[name] for name in names))
        # EAGLE's own code finds the target's embedding by the index, even if there is only one file.
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(folder / "model.safetensors.index.json", index)
        write_json(folder / "config.json", hf_config.from_checkpoint(config))
    files = f"{len(shards.filename_to_tensors)} safetensors file{'s' * shards.is_sharded}"
    say(f"wrote {out}: {config.family}, {files}, {config.source_dtype}")


def read_back(
    source: Path, names: Collection[str], config: CheckpointConfig | heads.HeadConfig
) -> dict[str, np.ndarray]:
    """Parameters in the source's dtype, or each in its own dtype if conversion did not change them."""
    arrays = parameters.read_arrays(source / "params", names)
    if config.dtype == config.source_dtype:
        return arrays
    return {name: array.astype(config.source_dtype) for name, array in arrays.items()}


def head_config(source: Path, drafter: str, formats: str | None = None) -> heads.HeadConfig:
    """Reads the config of a head to export. Raises CheckpointError if it is a checkpoint, or for another drafter.

    Args:
        formats: the formats of such heads, for error messages; None: the drafter's name.
    """
    if format_of(source) == config_json.FORMAT:
        raise CheckpointError(
            f"{source} is a checkpoint, which --format hf writes; --format {formats or drafter} takes a head"
        )
    config = heads.read_head(source, drafter)
    if drafter not in (Dflash.name, Eagle3.name) and config.settings.get("draft_vocabulary") is not None:
        raise CheckpointError(
            f"the head at {source} was cut to a draft vocabulary, which the format cannot store; export the head that "
            "it was cut from"
        )
    return config


def head_arrays(source: Path, config: heads.HeadConfig, abstract: nnx.Module) -> dict[str, np.ndarray]:
    """All parameters of a head, for export. Raises CheckpointError if they do not fit `abstract`."""
    return read_back(source, parameters.read_shapes(source / "params", abstract), config)


def write_published(
    out: Path, arrays: Mapping[str, np.ndarray], values: dict[str, Any], file: str, theirs: Callable[[str], str]
) -> None:
    """Writes a head in a published format: `values` to config.json, and the arrays to `file`."""
    with staged(out, sum(array.nbytes for array in arrays.values())) as folder:
        write_tensors(folder / file, arrays, theirs)
        write_json(folder / "config.json", values)


def write_tensors(file: Path, arrays: Mapping[str, np.ndarray], theirs: Callable[[str], str]) -> Collection[str]:
    """Writes parameters as safetensors, with PyTorch's names and layout. Returns these names."""
    from safetensors.numpy import save_file

    tensors = experts.split({theirs(name): np.ascontiguousarray(turned(name, array)) for name, array in arrays.items()})
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors makes it readable only for its owner
    return tensors.keys()


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a config in Hugging Face's form."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _generation(config: CheckpointConfig) -> dict[str, Any]:
    """The generation_config.json, where transformers looks for EOS ids."""
    values = hf_config.from_checkpoint(config)
    return {key: values[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if values[key] is not None}
