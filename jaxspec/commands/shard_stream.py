"""A model on the hub or in a bucket → checkpoint in a bucket; at most two of its files of weights are on this disk.

The next file is downloaded while one is converted, which is then removed. Each of several hosts converts its own files,
without communication. OUT/.shards records what each file became, so the same command resumes after a kill.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rich import filesize

from jaxspec.checkpoint import checksums, config_json, hub, parameters
from jaxspec.checkpoint.builtin import is_hub_id
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import folders, llama, readers, tokenizer, transfer
from jaxspec.convert.readers import Source, Tensor
from jaxspec.host import atomic, buckets
from jaxspec.host.environment import peak_memory
from jaxspec.host.interrupts import deferred
from jaxspec.host.terminal import progress, say
from jaxspec.model.quantization import check as check_quantization

AT_ONCE = 2  # files of weights on the disk: one that is converted, and the next
RECORDS = ".shards"
CONFIGS = "configs"  # folder on the disk with the copies of a bucket's
_WHOLE = folders.MODEL_FILES[0]
_INDEX = f"{_WHOLE}{folders.INDEX}"
_SHARDS = re.compile(r"model-\d+-of-\d+\.safetensors")
_LONGEST_HEADER = 100_000_000  # bytes; the limit of safetensors

Header = Mapping[str, tuple[str, tuple[int, ...]]]  # of each tensor: dtype, in safetensors' names, and shape


class Shard(NamedTuple):
    """A file of weights: its name, its bytes, and the hub's SHA-256 or the bucket's MD5, where there is one."""

    name: str
    size: int
    digest: str | None


@dataclasses.dataclass(frozen=True)
class HubModel:
    """A model of the hub, ORG/NAME, at the commit `version`; `shards` are its safetensors files, by name."""

    name: str
    version: str
    shards: Mapping[str, Shard]

    def configs(self, scratch: Path) -> Path:
        """A folder on this disk with its configs and tokenizer."""
        return folders.locate(self.name, self.version, weights=())

    def header(self, file: str) -> Header:
        """The header of a file, of which nothing else is downloaded."""
        from huggingface_hub import HfApi

        read = lambda: HfApi().parse_safetensors_file_metadata(self.name, file, revision=self.version)
        tensors = hub.ask(self.name, read).tensors
        return {name: (info.dtype, tuple(info.shape)) for name, info in tensors.items()}

    def download(self, shard: Shard, scratch: Path) -> Path:
        """The file in the folder `scratch`. Raises CheckpointError if it cannot be fetched, or is damaged."""
        from huggingface_hub import hf_hub_download

        file, where = scratch / shard.name, {"revision": self.version, "local_dir": scratch}
        atomic.check_room(file, shard.size)
        hub.ask(self.name, lambda: hf_hub_download(self.name, shard.name, **where))
        with file.open("rb") as stream:
            damaged = shard.digest not in (None, hashlib.file_digest(stream, "sha256").hexdigest())
        if damaged:
            file.unlink()
            raise CheckpointError(
                f"{shard.name} of {self.name} arrived damaged: its SHA-256 is not the one that the hub gives; run the "
                "same command again"
            )
        return file


@dataclasses.dataclass(frozen=True)
class BucketModel:
    """A Hugging Face folder in a bucket; `version` is a hash of `shards`, its safetensors files, by name."""

    folder: Path
    version: str
    shards: Mapping[str, Shard]

    @property
    def name(self) -> str:
        return str(self.folder)

    def configs(self, scratch: Path) -> Path:
        return folders.copy(self.folder, scratch / CONFIGS, weights=())

    def header(self, file: str) -> Header:
        path = self.folder / file
        try:
            with path.open("rb") as stream:
                if (size := int.from_bytes(stream.read(8), "little")) > _LONGEST_HEADER:
                    raise ValueError(f"its header would have {size:,} bytes")
                found: dict[str, Any] = json.loads(stream.read(size))
            found.pop("__metadata__", None)
            return {name: (info["dtype"], tuple(info["shape"])) for name, info in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a whole safetensors file ({error}); upload it again") from error

    def download(self, shard: Shard, scratch: Path) -> Path:
        atomic.check_room(scratch / shard.name, shard.size)
        return buckets.download(self.folder / shard.name, scratch / shard.name, shard.digest)


Model = HubModel | BucketModel


def look(source: str, revision: str | None) -> Model | None:
    """The model that an argument names on the hub or in a bucket; None: it is local, or has no safetensors.

    Raises CheckpointError if there is no such model.
    """
    folders.check_revision(source, revision)
    if buckets.in_bucket(folder := buckets.to_path(source)):
        there = {file.name: file for file in folder.iterdir()} if folder.is_dir() else {}
        shard = lambda name: Shard(name, there[name].stat().st_size, buckets.md5(there[name]))
        found = {name: shard(name) for name in _weights(there, lambda: folder / _INDEX)}
        version = hashlib.sha256(json.dumps([*found.values()]).encode()).hexdigest()
        return BucketModel(folder, version, found) if found else None
    if not is_hub_id(source):
        return None
    from huggingface_hub import HfApi, hf_hub_download

    info = hub.ask(source, lambda: HfApi().model_info(source, revision=revision, files_metadata=True))
    files = {file.rfilename: file for file in info.siblings or ()}
    sha256 = lambda file: file.lfs.sha256 if file.lfs else None
    index = lambda: Path(hub.ask(source, lambda: hf_hub_download(source, _INDEX, revision=info.sha)))
    found = {name: Shard(name, files[name].size or 0, sha256(files[name])) for name in _weights(files, index)}
    return HubModel(source, info.sha, found) if found and info.sha is not None else None


def _weights(names: Collection[str], index: Callable[[], Path]) -> list[str]:
    """Of the files of a model, those with weights; `index` fetches the index of its shards. Raises CheckpointError."""
    if _WHOLE in names:
        return [_WHOLE]  # as in transformers, shards beside it do not count
    if _INDEX in names:
        return readers.shards_in(index(), lambda name: name in names)
    return sorted(name for name in names if _SHARDS.fullmatch(name))


class Shards:
    """Files of weights of a model in a folder on this disk, at most AT_ONCE at a time."""

    def __init__(self, model: Model, folder: Path):
        self.model, self.folder = model, folder
        self.most = 0  # the most bytes that were on the disk at once
        self.held = OrderedDict[str, Future[Path]]()  # the one that was used last is at the end
        self.pool = ThreadPoolExecutor(1)

    def path(self, name: str) -> Path:
        """The local file, once it is downloaded. Raises CheckpointError if it cannot be."""
        self.begin(name)
        self.held.move_to_end(name)
        return self.held[name].result()

    def begin(self, name: str) -> None:
        """Starts a download, and removes the files that were not used for the longest time to make room for it."""
        if name in self.held:
            return
        while len(self.held) >= AT_ONCE:
            _, old = self.held.popitem(last=False)
            with contextlib.suppress(CheckpointError, OSError):
                old.result().unlink()
        self.held[name] = self.pool.submit(self.model.download, self.model.shards[name], self.folder)
        self.held.move_to_end(name, last=False)  # until it is used
        self.most = max(self.most, sum(self.model.shards[each].size for each in self.held))

    def close(self) -> None:
        """Ends the downloads."""
        self.pool.shutdown(cancel_futures=True)


def convert(
    model: Model,
    out: Path,
    dtype: str | None,
    tokenizer_from: Path | None,
    quantize: str | None,
    place: tuple[int, int] = (0, 1),
) -> None:
    """Converts a model into the checkpoint `out` in a bucket. Arguments and errors are those of `llama.convert`.

    Args:
        place: the number of this process, from 0, and that of all. Each converts its own files, and the one that
            finds all converted completes the checkpoint.

    Raises:
        ValueError: also if `out` was begun with other arguments.
    """
    check_quantization(quantize)
    with (
        folders.scratch(model.name) as folder,
        contextlib.closing(Shards(model, folder)) as shards,
        folders.named(folder, model.name),
        folders.named(folder / CONFIGS, model.name),
    ):
        source = model.configs(folder)
        planned, tensors = llama.plan(source, dtype, headers(shards))
        config = dataclasses.replace(planned, dtype=dtype or planned.dtype, quantize=quantize)
        tokenizer.check_readable(source, tokenizer_from)
        about = {"source": model.name, "version": model.version, "dtype": dtype, "quantize": quantize}
        about |= {} if tokenizer_from is None else {"tokenizer": str(tokenizer_from)}
        if not atomic.resume_in_bucket(out, json.dumps(about)):
            say(f"{out} is complete: nothing is left to convert")
            return
        files = _by_file(tensors, out, dtype, quantize)
        _write_params(shards, files, dtype, quantize, out, place)
        missing = sum(not file.record.exists() for file in files)
        complete = (out / "config.json").exists()  # checked after the records, because the completing host removes them
        if not missing:
            _complete(out, [file.record for file in files], config, source, tokenizer_from)
            if place[1] == 1:
                (out / atomic.UNFINISHED).unlink(missing_ok=True)
    disk, memory = filesize.decimal(shards.most), filesize.decimal(peak_memory())
    say(f"at most {disk} of weights on this disk, and {memory} of memory")
    if missing and not complete:
        say(f"other hosts have {missing} of {len(files)} files left; the last host to finish completes {out}")
        return
    llama.say_written(out, config)


def _complete(
    out: Path, records: list[Path], config: CheckpointConfig, source: Path, tokenizer_from: Path | None
) -> None:
    """Makes the parts of all files the checkpoint's parameters, and writes the rest of it. Hosts may do so at once."""
    try:
        found = [json.loads(record.read_text()) for record in records]
    except FileNotFoundError:  # another host has completed it
        return
    parameters.write_index(out / "params", {part: names for each in found for part, names in each["parts"].items()})
    digests = checksums.digests(out, [f"params/{parameters.PARTS}"])
    checksums.write_digests(out, digests | {name: sha for each in found for name, sha in each["sha256"].items()})
    kind = tokenizer.copy_or_make(source, out, tokenizer_from)
    config_json.write_config(out, dataclasses.replace(config, tokenizer_class=kind))
    buckets.remove(out / RECORDS)


def headers(shards: Shards) -> Source:
    """All tensors of the files, of which only the headers are downloaded now."""
    read = lambda file, name: readers.open_safetensors(shards.path(file))[name].read()
    tensors: dict[str, Tensor] = {}
    for file in shards.model.shards:
        for name, (kind, shape) in shards.model.header(file).items():
            dtype = readers.SAFETENSORS_DTYPES.get(kind, kind)
            tensor = Tensor(name, shape, dtype, file, functools.partial(read, file, name))
            if not readers.same(tensors.setdefault(name, tensor), tensor):
                raise CheckpointError(f"tensor {name} of {shards.model.name} is in two files, with other values")
    return tensors


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the model: its parameters, their bytes in the checkpoint, and its record, written after them."""

    name: str
    tensors: dict[str, Tensor]
    size: int
    record: Path


def _by_file(tensors: Mapping[str, Tensor], out: Path, dtype: str | None, quantize: str | None) -> list[File]:
    """The files in order, each with the parameters that begin in it: a stack of experts may be in several."""
    of: dict[str, dict[str, Tensor]] = {}
    for ours, tensor in tensors.items():
        of.setdefault(tensor.file.split(", ")[0], {})[ours] = tensor
    return [
        File(name, of[name], transfer.total_bytes(of[name], dtype, quantize), out / RECORDS / f"{number:05}.json")
        for number, name in enumerate(sorted(of))
    ]


def _write_params(
    shards: Shards, files: list[File], dtype: str | None, quantize: str | None, out: Path, place: tuple[int, int]
) -> None:
    """Writes the parameters of this process's files and, after each file, its record. Leaves out recorded ones."""
    index, count = place
    ours = [file for file in files[index::count] if not file.record.exists()]
    title = f"converting {len(ours)} of {len(files)} files of {shards.model.name}:"
    group_bytes = transfer.group_bytes(sum(file.size for file in files))
    with progress(title, sum(file.size for file in ours), form=filesize.decimal) as shown, deferred() as interrupts:

        def counted(file: File) -> Iterator[tuple[str, Any]]:
            for name, array in transfer.stream(file.tensors, dtype, quantize):
                interrupts.release()
                shown.advance(array.nbytes)
                yield name, array
                del array

        for file, following in zip(ours, [*ours[1:], None], strict=True):
            shards.path(file.name)
            if following is not None:
                shards.begin(following.name)
            _write_one(out, file.record, counted(file), group_bytes)


def _write_one(out: Path, record: Path, params: Iterator[tuple[str, Any]], group_bytes: int) -> None:
    """Writes the parameters of one file, and its record: the names in each part, and the digests of the parts."""
    prefix = f"{record.stem}-"
    for left in (out / "params").glob(f"{prefix}*"):  # by a run that was killed
        buckets.remove(left)
    parts = parameters.write_parts(out / "params", params, group_bytes, prefix)
    written = [
        file.relative_to(out).as_posix() for part in parts for file in buckets.files_under(out / "params" / part)
    ]
    record.write_text(json.dumps({"parts": parts, "sha256": checksums.digests(out, written)}))
