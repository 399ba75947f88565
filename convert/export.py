"""jaxspec checkpoint → Hugging Face folder: safetensors, sharded above 5 GB, in the source's dtype."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np

from jaxspec import checkpoint
from jaxspec.checkpoint import CheckpointConfig
from jaxspec.convert import hf_config, tokenizer
from jaxspec.convert.files import check_room, staged
from jaxspec.convert.names import is_kernel, theirs
from jaxspec.convert.progress import progress, say

SHARD_BYTES = 5 * 10**9


def export(source: Path, out: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes the target of a checkpoint as a Hugging Face folder; heads stay behind.

    Tensors are those that were converted, bit for bit, wherever conversion lost none.

    Raises:
        CheckpointError: `source` is no checkpoint, or `out` exists; nothing is left at `out`.
        DiskFullError: no room; nothing is left at `out`.
    """
    config = checkpoint.read_config(source)
    stored = checkpoint.read_shapes(source / "params")
    checkpoint.check_names(checkpoint.module_to_dict(checkpoint.abstract(config.model)), stored, str(source / "params"))
    # Parameters kept as they were keep each its own dtype; others get the source's back.
    dtypes = {
        name: np.dtype(meta.dtype if config.dtype == config.source_dtype else config.source_dtype)
        for name, meta in stored.items()
    }
    sizes = {name: math.prod(meta.shape) * dtypes[name].itemsize for name, meta in stored.items()}
    total = sum(sizes.values())
    shards = list(_shards(sizes, shard_bytes))
    with staged(out, total) as folder, progress(f"exporting {source.name or source}", total) as advance:
        _write_json(folder / "config.json", hf_config.from_checkpoint(config))
        _write_json(folder / "generation_config.json", _generation(config))
        tokenizer.copy(source, folder)
        weight_map = {}
        for i, names in enumerate(shards):
            check_room(out, sum(sizes[name] for rest in shards[i:] for name in rest))
            file = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
            _write_shard(source / "params", folder / file, names, dtypes)
            weight_map |= {theirs(name, "huggingface"): file for name in names}
            advance(sum(sizes[name] for name in names))
        if len(shards) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            _write_json(folder / "model.safetensors.index.json", index)
    say(f"wrote {out}: {config.family}, {len(shards)} safetensors file{'s' * (len(shards) > 1)}, {config.source_dtype}")


def _shards(sizes: dict[str, int], limit: int) -> Iterator[list[str]]:
    """Names in order, as many a shard as fit into `limit` bytes."""
    shard: list[str] = []
    for name in sorted(sizes, key=checkpoint.natural):
        if shard and sum(sizes[other] for other in shard) + sizes[name] > limit:
            yield shard
            shard = []
        shard.append(name)
    yield shard


def _write_shard(params: Path, file: Path, names: list[str], dtypes: dict[str, np.dtype]) -> None:
    from safetensors.numpy import save_file

    tensors = {}
    for name, array in checkpoint.read_arrays(params, names).items():
        tensors[theirs(name, "huggingface")] = np.ascontiguousarray(
            array.T if is_kernel(name) else array, dtype=dtypes[name]
        )
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors makes it readable for its owner alone


def _generation(config: CheckpointConfig) -> dict[str, Any]:
    """generation_config.json, which is where transformers looks for the ids that end a sequence."""
    values = hf_config.from_checkpoint(config)
    return {key: values[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if values[key] is not None}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
