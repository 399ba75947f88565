"""Hugging Face or Meta folder → jaxspec checkpoint: plan from the headers alone, then stream the tensors.

Everything that can be known without reading a weight is checked before the first byte is written.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np

from jaxspec import checkpoint
from jaxspec.checkpoint import CheckpointConfig, CheckpointError
from jaxspec.config import LlamaConfig
from jaxspec.convert import hf_config, meta, tokenizer
from jaxspec.convert.files import check_room, staged
from jaxspec.convert.interrupts import deferred
from jaxspec.convert.names import IGNORED, Scheme, is_kernel, theirs
from jaxspec.convert.progress import progress, say
from jaxspec.convert.readers import Source, Tensor, open_directory, read_json

# A model is written in about this many groups: enough to keep a group small, few enough for Orbax, which merges them.
_GROUPS = 64
_SMALLEST_GROUP = 32 * 2**20
_BLOCK = 2**22


@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be written: the config, and for each of our names the tensor of the source that it comes from."""

    config: CheckpointConfig
    tensors: dict[str, Tensor]
    scheme: Scheme

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def convert(source: Path, out: Path, dtype: str | None = None, tokenizer_from: Path | None = None) -> CheckpointConfig:
    """Converts a folder into the checkpoint `out`.

    Args:
        source: a Hugging Face or Meta folder.
        out: folder to make; must not exist.
        dtype: dtype of every parameter; None keeps each tensor's own.
        tokenizer_from: folder with a Hugging Face tokenizer to copy in place of the source's.

    Raises:
        CheckpointError: what is wrong with the source or the arguments; nothing is left at `out`.
        DiskFullError: no room; nothing is left at `out`.
    """
    planned = plan(source)
    config = planned.config if dtype is None else dataclasses.replace(planned.config, dtype=dtype)
    size = planned.nbytes if dtype is None else checkpoint.required_bytes(config.model, dtype)
    with staged(out, size) as folder:
        checkpoint.write_config(folder, config)
        tokenizer.bring(tokenizer_from or source, folder, planned.scheme if tokenizer_from is None else "huggingface")
        with progress(f"converting {source.name or source}", size) as advance, deferred() as let_interrupts_through:
            params = _watched(stream(planned.tensors, dtype), out, size, advance, let_interrupts_through)
            checkpoint.write_params(folder / "params", params, max(size // _GROUPS, _SMALLEST_GROUP))
    say(f"wrote {out}: {config.family}, {checkpoint.parameter_count(config.model):,} parameters, {config.dtype}")
    return config


def plan(source: Path) -> Plan:
    """Reads configs and headers and checks them against each other."""
    if meta.is_meta(source):
        model, tensors = meta.open_meta(source)
        family, tokens, scheme = "llama", meta.special_tokens(model), "meta"
    else:
        model, family, tokens, tensors, scheme = *_huggingface(source), "huggingface"
    matched = _match(model, tensors, scheme, source)
    weight = Counter[str]()
    for tensor in matched.values():
        weight[tensor.dtype] += tensor.nbytes
    dtype = weight.most_common(1)[0][0]
    config = CheckpointConfig(family, model, dtype, dtype, scheme, tokens.bos, tokens.eos, tokens.pad)
    return Plan(config, matched, scheme)


def stream(tensors: dict[str, Tensor], dtype: str | None) -> Iterator[tuple[str, np.ndarray]]:
    """Our names and arrays, one tensor in memory at a time."""
    for ours, tensor in tensors.items():
        array = tensor.read()
        array = np.ascontiguousarray(array.T if is_kernel(ours) else array, dtype=dtype and np.dtype(dtype))
        _check_finite(array, tensor)
        yield ours, array
        del array  # or the next one would be read beside it


def _watched(
    params: Iterator[tuple[str, np.ndarray]],
    out: Path,
    left: int,
    advance: Callable[[int], None],
    let_interrupts_through: Callable[[], None],
) -> Iterator[tuple[str, np.ndarray]]:
    """The same pairs, counted, and stopped before the disk is full: Orbax's threads each end in a traceback there."""
    for name, array in params:
        let_interrupts_through()
        size = array.nbytes
        check_room(out, left)
        yield name, array
        del array
        left -= size
        advance(size)


def _huggingface(source: Path) -> tuple[LlamaConfig, str, hf_config.SpecialTokens, Source]:
    if not source.is_dir():
        raise CheckpointError(
            f"{source} is not a folder; name a Hugging Face or Meta folder, or a hub id like org/model"
        )
    raw = read_json(source / "config.json")
    if raw.get("format") == checkpoint.FORMAT:
        raise CheckpointError(f"{source} is a jaxspec checkpoint already; use it as it is, or `export` it")
    generation_file = source / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    if (penalty := generation.get("repetition_penalty") or 1) != 1:
        say(f"warning: {generation_file} asks for repetition_penalty {penalty}, which jaxspec does not apply")
    model = hf_config.to_llama(raw)
    return model, hf_config.family(raw), hf_config.special_tokens(raw, generation), open_directory(source)


def _match(model: LlamaConfig, tensors: Source, scheme: Scheme, source: Path) -> dict[str, Tensor]:
    """Our name → tensor, for exactly the parameters of the model."""
    expected = checkpoint.module_to_dict(checkpoint.abstract(model))
    found = {name: tensor for name, tensor in tensors.items() if not IGNORED.fullmatch(name)}
    if model.tie_embeddings:
        _check_tied(found, scheme, source)
    shape = lambda ours, leaf: leaf.shape[::-1] if is_kernel(ours) else leaf.shape
    wanted = {theirs(ours, scheme): Expected(shape(ours, leaf)) for ours, leaf in expected.items()}
    checkpoint.check_names(wanted, found, str(source))
    return {ours: found[theirs(ours, scheme)] for ours in sorted(expected, key=checkpoint.natural)}


@dataclasses.dataclass(frozen=True)
class Expected:
    """Shape that a tensor must have in the file."""

    shape: tuple[int, ...]


def _check_tied(found: dict[str, Tensor], scheme: Scheme, source: Path) -> None:
    """Drops the LM head of a tied model after comparing it with the embedding."""
    head = found.pop(theirs("head.kernel", scheme), None)
    embedding = found.get(theirs("embedding", scheme))
    if head is not None and embedding is not None and not np.array_equal(head.read(), embedding.read()):
        raise CheckpointError(
            f"{source} says tie_word_embeddings, but its {theirs('head.kernel', scheme)} differs from the embedding; "
            "set tie_word_embeddings to false in config.json if the head is meant"
        )


def _check_finite(array: np.ndarray, tensor: Tensor) -> None:
    flat = array.reshape(-1)
    # In blocks: the mask of a whole embedding would be a gigabyte.
    if not all(np.isfinite(flat[start : start + _BLOCK]).all() for start in range(0, flat.size, _BLOCK)):
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} holds NaN or infinite values; the checkpoint is damaged"
        )
