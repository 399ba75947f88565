"""jaxspec checkpoint → Hugging Face folder: safetensors, sharded above 5 GB, in the source's dtype."""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from flax import nnx
from rich import filesize

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.checkpoint.heads import HeadConfig
from jaxspec.convert import experts, hf_config, tokenizer
from jaxspec.convert.names import theirs, turned
from jaxspec.convert.readers import format_of
from jaxspec.host.atomic import check_room, staged
from jaxspec.host.progress import progress
from jaxspec.host.terminal import say

SHARD_BYTES = 5 * 10**9


def export(source: Path, out: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes the target of a checkpoint as a Hugging Face folder; heads stay behind.

    Tensors are those that were converted, bit for bit, wherever conversion lost none.

    Raises:
        CheckpointError: `source` is no checkpoint; nothing is left at `out`.
        ValueError: `out` exists.
        DiskFullError: no room; nothing is left at `out`.
    """
    if format_of(source) == heads.FORMAT:
        raise CheckpointError(
            f"{source} is a head, which --format eagle or medusa writes; --format hf takes a checkpoint"
        )
    config = config_json.read_config(source)
    if config.quantize is not None:
        raise CheckpointError(
            f"{source} holds {config.quantize} weights, in which the source's bits are lost; export a checkpoint that "
            "was converted without --quantize"
        )
    stored = parameters.read_shapes(source / "params")
    parameters.check_names(parameters.module_to_dict(parameters.abstract(config.model)), stored, str(source / "params"))
    dtypes = source_dtypes(stored, config.dtype, config.source_dtype)
    sizes = {name: math.prod(meta.shape) * dtypes[name].itemsize for name, meta in stored.items()}
    total = sum(sizes.values())
    shards = list(_shards(sizes, shard_bytes))
    title = f"exporting {source.name or source}:"
    with staged(out, total) as folder, progress(title, total, form=filesize.decimal) as shown:
        write_json(folder / "config.json", hf_config.from_checkpoint(config))
        write_json(folder / "generation_config.json", _generation(config))
        tokenizer.copy(source, folder)
        weight_map = {}
        for i, names in enumerate(shards):
            check_room(out, sum(sizes[name] for rest in shards[i:] for name in rest))
            file = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
            arrays = parameters.read_arrays(source / "params", names)
            written = write_tensors(folder / file, arrays, dtypes, lambda name: theirs(name, "huggingface"))
            del arrays
            weight_map |= dict.fromkeys(written, file)
            shown.advance(sum(sizes[name] for name in names))
        if len(shards) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            write_json(folder / "model.safetensors.index.json", index)
    say(f"wrote {out}: {config.family}, {len(shards)} safetensors file{'s' * (len(shards) > 1)}, {config.source_dtype}")


def _shards(sizes: dict[str, int], limit: int) -> Iterator[list[str]]:
    """Names in order, as many a shard as fit into `limit` bytes."""
    shard: list[str] = []
    for name in sorted(sizes, key=parameters.natural):
        if shard and sum(sizes[other] for other in shard) + sizes[name] > limit:
            yield shard
            shard = []
        shard.append(name)
    yield shard


def source_dtypes(stored: Mapping[str, Any], dtype: str, source_dtype: str) -> dict[str, np.dtype]:
    """Parameters kept as they were keep each its own dtype; others get the source's back."""
    return {name: np.dtype(meta.dtype if dtype == source_dtype else source_dtype) for name, meta in stored.items()}


def head_config(source: Path, drafter: str) -> HeadConfig:
    """Reads the config of a head to export. Raises CheckpointError where it is a checkpoint, or another drafter's."""
    if format_of(source) == config_json.FORMAT:
        raise CheckpointError(f"{source} is a checkpoint, which --format hf writes; --format {drafter} takes a head")
    return heads.read_head(source, drafter)


def head_arrays(
    source: Path, config: HeadConfig, abstract: nnx.Module
) -> tuple[dict[str, np.ndarray], dict[str, np.dtype]]:
    """Every parameter of a head, and the dtype that it gets; raises CheckpointError where they are not `abstract`'s."""
    stored = parameters.read_shapes(source / "params")
    parameters.check_names(parameters.module_to_dict(abstract), stored, str(source / "params"))
    return parameters.read_arrays(source / "params", stored), source_dtypes(stored, config.dtype, config.source_dtype)


def write_published(
    out: Path,
    arrays: Mapping[str, np.ndarray],
    dtypes: Mapping[str, np.dtype],
    values: dict[str, Any],
    file: str,
    theirs: Callable[[str], str],
) -> None:
    """Writes a head in a published format: `values` into config.json, and the arrays into `file`."""
    with staged(out, sum(array.size * dtypes[name].itemsize for name, array in arrays.items())) as folder:
        write_json(folder / "config.json", values)
        write_tensors(folder / file, arrays, dtypes, theirs)


def write_tensors(
    file: Path, arrays: Mapping[str, np.ndarray], dtypes: Mapping[str, np.dtype], theirs: Callable[[str], str]
) -> Collection[str]:
    """Writes our parameters as safetensors, under the names and in the layout of PyTorch; returns these names."""
    from safetensors.numpy import save_file

    tensors = experts.split(
        {theirs(name): np.ascontiguousarray(turned(name, array), dtype=dtypes[name]) for name, array in arrays.items()}
    )
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors makes it readable for its owner alone
    return tensors.keys()


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a config as Hugging Face does."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _generation(config: CheckpointConfig) -> dict[str, Any]:
    """generation_config.json, which is where transformers looks for the ids that end a sequence."""
    values = hf_config.from_checkpoint(config)
    return {key: values[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if values[key] is not None}
