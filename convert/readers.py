"""Lazy access to tensors: shapes are known at once, and each tensor is read on demand.

A mapped file counts as memory while its touched pages stay mapped. Opening it again for every tensor costs a
millisecond and keeps the peak at one tensor.
"""

import dataclasses
import functools
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import ml_dtypes  # it also teaches numpy the name bfloat16
import numpy as np

from jaxspec.checkpoint import config_json, heads
from jaxspec.checkpoint.config_json import DTYPES, CheckpointError

_SAFETENSORS_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor on disk: its name, shape, dtype and file, and a function that reads it.

    The dtype may be unsupported: see `check_dtypes`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    read: Callable[[], np.ndarray]


Source = Mapping[str, Tensor]


def open_directory(path: Path) -> Source:
    """All tensors of a Hugging Face folder.

    Safetensors are preferred to `.bin`, and a single file to shards, as in transformers.

    Raises:
        CheckpointError: there are no weights, the index is invalid, or a shard is missing or unreadable.
    """
    for stem, suffix, opener in (("model", "safetensors", open_safetensors), ("pytorch_model", "bin", open_torch)):
        if (single := path / f"{stem}.{suffix}").exists():
            return opener(single)
        if (index := path / f"{stem}.{suffix}.index.json").exists():
            return _open_shards(index, opener)
    raise CheckpointError(
        f"{path} holds neither model.safetensors nor pytorch_model.bin nor an index of their shards; "
        "check that the download is complete"
    )


def _open_shards(index: Path, opener: Callable[[Path], Source]) -> Source:
    """The tensors of all shards in an index, each shard checked against the index."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensors to files; download it again")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        # Only the name is checked, because files in the hub's cache are links to other folders.
        parts = PurePosixPath(shard).parts
        if not parts or shard.startswith("/") or "\\" in shard or ".." in parts or ":" in shard:
            raise CheckpointError(f"{index} points outside its directory, to {shard!r}; do not trust this checkpoint")
        if not (index.parent / shard).is_file():
            raise CheckpointError(f"shard {shard} is named in {index} but absent; download it again")
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        found = opener(index.parent / shard)
        listed = {name for name, where in weight_map.items() if where == shard}
        if wrong := sorted(listed ^ found.keys()):
            problem = "but holds no" if wrong[0] in listed else "without it, but holds"
            raise CheckpointError(f"{shard} is listed in {index.name} {problem} tensor {wrong[0]}; download both again")
        tensors |= found
    return tensors


def open_safetensors(path: Path) -> Source:
    """All tensors of one safetensors file."""
    from safetensors import SafetensorError, safe_open

    def read(name: str) -> np.ndarray:
        try:
            with safe_open(path, framework="numpy") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"tensor {name} in {path} cannot be read: {error}; download it again") from error

    def lazy(name: str, header: Any) -> Tensor:
        dtype = str(header.get_dtype())
        shape, dtype = tuple(header.get_shape()), _SAFETENSORS_DTYPES.get(dtype, dtype)
        return Tensor(name, shape, dtype, path.name, functools.partial(read, name))

    try:
        with safe_open(path, framework="numpy") as file:
            return {name: lazy(name, file.get_slice(name)) for name in file.keys()}  # noqa: SIM118 (it has no __iter__)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a whole safetensors file ({error}); it may be truncated: download it again"
        ) from error


def open_torch(path: Path) -> Source:
    """All tensors of one PyTorch file, which must be a plain state dict. No pickled code is ever run."""

    def read(name: str) -> np.ndarray:
        import torch

        tensor = _load_torch(path)[name].contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
        return tensor.numpy().copy()

    def lazy(name: str, tensor: Any) -> Tensor:
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Tensor(name, tuple(tensor.shape), dtype, path.name, functools.partial(read, name))

    return {name: lazy(name, tensor) for name, tensor in _load_torch(path).items()}


def _load_torch(path: Path) -> dict[str, Any]:
    """The tensors of a PyTorch file, memory-mapped."""
    state = load_torch(path)
    import torch  # `load_torch` has checked that it is installed

    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise CheckpointError(f"{path} is not a state dict: it must map names to tensors and hold nothing else")
    return state


def load_torch(path: Path) -> Any:
    """The content of a PyTorch file: memory-mapped tensors and numbers, in lists and dictionaries.

    Raises:
        CheckpointError: it holds other objects, is damaged, or PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            f"reading {path} needs PyTorch, which is not installed: pip install 'jax-specdec[torch]'"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)  # only tensors are loaded
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors and is rejected, because loading it could run code"
        ) from error
    except (RuntimeError, OSError, EOFError) as error:
        if _is_pickle(path):
            raise CheckpointError(
                f"{path} is a pickle and not a PyTorch file of version 1.6 or later: it is rejected, because loading "
                "it could run code; save the weights as safetensors"
            ) from error
        raise CheckpointError(
            f"{path} is not a whole PyTorch file of version 1.6 or later; download it again or save it anew"
        ) from error


def _is_pickle(path: Path) -> bool:
    """Whether a file begins like a pickle of protocol 2 or later."""
    try:
        with path.open("rb") as file:
            return file.read(1) == b"\x80"
    except OSError:
        return False


def check_dtypes(tensors: Source) -> None:
    """Raises CheckpointError, naming a tensor without a supported float dtype."""
    for tensor in tensors.values():
        if tensor.dtype not in DTYPES:
            raise CheckpointError(
                f"tensor {tensor.name} in {tensor.file} has dtype {tensor.dtype}, and only {', '.join(DTYPES)} are "
                "read; use the checkpoint that is not quantized"
            )


def format_of(path: Path) -> str | None:
    """The jaxspec format in the config.json of a folder: a checkpoint's or a head's; None for other folders."""
    file = path / "config.json"
    found = read_json(file).get("format") if file.is_file() else None
    return found if found in (config_json.FORMAT, heads.FORMAT) else None


def read_config(source: Path) -> dict[str, Any]:
    """The config.json of a folder to convert. Raises CheckpointError if there is none, or it is jaxspec's own."""
    if not source.is_dir():
        raise CheckpointError(
            f"{source} is not a folder; name a Hugging Face or Meta folder, or a hub id like org/model"
        )
    if ours := format_of(source):
        kind, more = ("checkpoint", "") if ours == config_json.FORMAT else ("head", ", or cut it with --draft-vocab")
        raise CheckpointError(f"{source} is a jaxspec {kind} already; use it as it is, or `export` it{more}")
    return read_json(source / "config.json")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CheckpointError if it is missing, invalid, or not an object."""
    try:
        values = config_json.parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds no JSON object; download it again")
    return values
