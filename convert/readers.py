"""Lazy access to tensors: shapes are known at once, and each tensor is read on demand.

A file is opened again for every tensor, which takes a millisecond: else all pages read so far would stay in memory.
"""

import contextlib
import dataclasses
import functools
import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import ml_dtypes  # its import also registers bfloat16 with NumPy
import numpy as np

from jaxspec.checkpoint.config_json import DTYPES, CheckpointError
from jaxspec.convert.folders import INDEX, MODEL_FILES, check_present, instead, read_json, weights_file
from jaxspec.convert.names import IGNORED
from jaxspec.host.buckets import in_bucket
from jaxspec.host.terminal import say

SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Keys under which training code keeps a model's state dict, beside its optimizer's and the like.
_NESTED = ("state_dict", "model_state_dict", "model", "module")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor on disk, and a function that reads it. The dtype may be unsupported: see `check_dtypes`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    read: Callable[[], np.ndarray]


Source = Mapping[str, Tensor]


def open_directory(path: Path) -> Source:
    """All tensors of a Hugging Face folder; as in transformers, safetensors go first. Raises CheckpointError."""
    if (file := weights_file(path)) is None:
        raise CheckpointError(instead(path, f"neither {' nor '.join(MODEL_FILES)} nor an index of their shards"))
    return open_file_or_shards(file)


def open_file_or_shards(file: Path) -> Source:
    """All tensors of a file, or of the shards that its index names if there is no such file."""
    # As in transformers, it does not matter which tensors the index expects in which shard.
    opener = open_safetensors if file.suffix == ".safetensors" else open_torch
    if file.exists():
        return opener(file)
    index = file.with_name(f"{file.name}{INDEX}")
    shards = shards_in(index, lambda shard: (index.parent / shard).is_file())
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for name, tensor in opener(index.parent / shard).items():
            if not same(tensors.setdefault(name, tensor), tensor):
                raise CheckpointError(
                    f"tensor {name} is in {tensors[name].file} and, with other values, in {shard}; download both again"
                )
    return tensors


def shards_in(index: Path, is_there: Callable[[str], bool]) -> list[str]:
    """The files that an index names, sorted. Raises CheckpointError if it is invalid, or one of them is not there."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensors to files; download it again")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        # Only the name is checked, because files in the hub's cache are links to other folders.
        parts = PurePosixPath(shard).parts
        if not parts or shard.startswith("/") or "\\" in shard or ".." in parts or ":" in shard:
            raise CheckpointError(f"{index} points outside its directory, to {shard!r}; do not trust this checkpoint")
        if not is_there(shard):
            raise CheckpointError(f"shard {shard} is named in {index} but absent; download it again")
    return shards


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, by their values; tables of rotary angles always are, because they are ignored."""
    if one is other or IGNORED.fullmatch(one.name):
        return True
    alike = (one.shape, one.dtype) == (other.shape, other.dtype) and one.dtype in DTYPES
    return alike and np.array_equal(one.read(), other.read())


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
        dtype = SAFETENSORS_DTYPES.get(str(header.get_dtype()), str(header.get_dtype()))
        return Tensor(name, tuple(header.get_shape()), dtype, path.name, functools.partial(read, name))

    check_present(path)
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: lazy(name, file.get_slice(name)) for name in file.keys()}  # noqa: SIM118 (it has no __iter__)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file ({error}); download it again") from error


def open_torch(path: Path) -> Source:
    """All tensors of one PyTorch file: a state dict, or one in another dictionary. No pickled code is ever run."""
    state, ignored = _state_dict(path)
    if ignored:
        say(f"warning: only the state dict in {path} is read, and {', '.join(map(repr, ignored))} beside it ignored")
    # Files that PyTorch before 1.6 wrote cannot be mapped, so their tensors stay in memory.
    kept = None if zipfile.is_zipfile(path) else state

    def read(name: str) -> np.ndarray:
        import torch

        tensor = (kept or _state_dict(path)[0])[name].detach().resolve_neg().contiguous()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
        return tensor.numpy().copy()

    return {
        name: Tensor(name, tuple(tensor.shape), _torch_dtype(tensor), path.name, functools.partial(read, name))
        for name, tensor in state.items()
    }


def _state_dict(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The tensors of a PyTorch file, and the keys beside a nested state dict."""
    state, ignored = load_torch(path), []
    import torch  # `load_torch` has checked that it is installed

    while isinstance(state, dict) and (inner := [key for key in _NESTED if isinstance(state.get(key), dict)]):
        if len(inner) > 1:
            raise CheckpointError(f"{path} holds several state dicts ({', '.join(inner)}); save one of them alone")
        ignored += [str(key) for key in state if key != inner[0]]
        state = state[inner[0]]
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a state dict but a {type(state).__name__}; save the model's state_dict()")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise CheckpointError(
                f"{path} is not a state dict, since its key {name!r} has a value of type {type(tensor).__name__}"
            )
    return state, ignored


def _torch_dtype(tensor: Any) -> str:
    """The dtype of a PyTorch tensor; in parentheses why its values cannot be read, if they cannot."""
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if plain and not tensor.is_meta:
        return dtype
    return f"{dtype} ({type(tensor).__name__}, {tensor.layout}, on device {tensor.device})"


def load_torch(path: Path) -> Any:
    """The content of a PyTorch file, mapped if it is on a disk; a CheckpointError if it holds other than data."""
    check_present(path)
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(f"reading {path} needs PyTorch, which is not installed: pip install torch") from error
    file = io.BytesIO(path.read_bytes()) if in_bucket(path) else path
    mapped = file is path and zipfile.is_zipfile(path)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)  # only tensors are loaded
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # on damaged files PyTorch raises whatever its parsers do
        raise CheckpointError(f"{path} {_problem(path, error)}") from error


def _problem(path: Path, error: Exception) -> str:
    """What PyTorch's error means, and what to do."""
    named = re.search(r"GLOBAL ([\w.]+)|TorchScript", str(error))
    if named is not None or (isinstance(error, pickle.UnpicklingError) and zipfile.is_zipfile(path)):
        what = "" if named is None else f" ({named[1] or named[0]})"
        more = "because loading it could run code; save the model's state_dict(), best as safetensors"
        return f"holds more than tensors{what} and is rejected, {more}"
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(1) == b"\x80":  # as pickles of protocol 2 or later begin
            return "is no PyTorch file but a pickle, which could run code; save the weights as safetensors"
    return "is not a whole PyTorch file; download it again or save it anew"


def check_dtypes(tensors: Source, more: tuple[str, ...] = ()) -> None:
    """Raises CheckpointError for a tensor that matters whose dtype is neither in `DTYPES` nor in `more`."""
    for tensor in tensors.values():
        if tensor.dtype in (*DTYPES, *more) or IGNORED.fullmatch(tensor.name):
            continue
        advice = "if the checkpoint is quantized, use the one it was made from"
        if tensor.dtype == "float64":
            advice = "save it as float32, or convert a whole model with --dtype float32"
        elif "(" in tensor.dtype:  # see `_torch_dtype`
            advice = "save it as a dense tensor with its values"
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} has dtype {tensor.dtype}, not {', '.join(DTYPES)}; {advice}"
        )
