"""A model of the hub → checkpoint in a bucket, while at most two of its files of weights are on this disk.

The next file is downloaded while one is converted, which is then removed. Each of several hosts converts its own files,
without meeting the others. OUT/.shards records what each file became, so the same command resumes after a kill.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import resource
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich import filesize

from jaxspec.checkpoint import checksums, config_json, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import folders, llama, readers, tokenizer, transfer
from jaxspec.convert.readers import Source, Tensor
from jaxspec.host import atomic, buckets
from jaxspec.host.interrupts import deferred
from jaxspec.host.terminal import progress, say
from jaxspec.model.quantization import check as check_quantization

AT_ONCE = 2  # files of weights on the disk: one that is converted, and the next
RECORDS = ".shards"
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of weights on the hub."""

    name: str
    size: int
    sha256: str | None  # None: the hub has none, as for files outside its large-file storage


class Shards:
    """Files of weights of a model on the hub, of which at most AT_ONCE are on this disk.

    Attributes:
        found: the files by name, in the order in which the model has them.
        folder: where they are, on a disk.
        most: the most bytes that were on the disk at once.
    """

    def __init__(self, repository: str, commit: str, found: Mapping[str, Shard], folder: Path):
        self.repository, self.commit, self.found, self.folder, self.most = repository, commit, found, folder, 0
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
            with contextlib.suppress(CheckpointError):
                old.result().unlink()
        self.held[name] = self.pool.submit(self.download, self.found[name])
        self.held.move_to_end(name, last=False)  # until it is used
        self.most = max(self.most, sum(self.found[each].size for each in self.held))

    def download(self, shard: Shard) -> Path:
        from huggingface_hub import hf_hub_download

        file = self.folder / shard.name
        atomic.check_room(file, shard.size)
        where: Any = {"revision": self.commit, "local_dir": self.folder}
        folders.ask_hub(self.repository, lambda: hf_hub_download(self.repository, shard.name, **where))
        if shard.sha256 is not None:
            with file.open("rb") as stream:
                got = hashlib.file_digest(stream, "sha256").hexdigest()
            if got != shard.sha256:
                file.unlink()
                raise CheckpointError(
                    f"{shard.name} of {self.repository} arrived damaged: its SHA-256 is not the one that the hub "
                    "gives; run the same command again"
                )
        return file

    def close(self) -> None:
        """Ends the downloads."""
        self.pool.shutdown(cancel_futures=True)


def convert(
    name: str,
    commit: str,
    found: Mapping[str, Shard],
    out: Path,
    dtype: str | None,
    tokenizer_from: Path | None,
    quantize: str | None,
    place: tuple[int, int] = (0, 1),
) -> None:
    """Converts the model ORG/NAME of the hub into the checkpoint `out` in a bucket.

    Args:
        commit, found: the version to convert, and its files, as `look` gives them.
        out, dtype, tokenizer_from, quantize: as in `llama.convert`.
        place: the number of this process, from 0, and that of all. Each converts its own files, and the one that
            finds all converted completes the checkpoint.

    Raises:
        ValueError: as in `llama.convert`, or `out` was begun with other arguments.
        CheckpointError: the model is invalid or not supported, or the hub does not give a file.
    """
    from huggingface_hub import constants

    check_quantization(quantize)
    source = folders.locate(name, commit, weights=())
    # Beside the hub's cache, for jaxspec's own may be in a bucket.
    scratch = atomic.scratch(Path(constants.HF_HUB_CACHE).with_name("jaxspec-shards") / name.replace("/", "--"))
    with scratch as folder, contextlib.closing(Shards(name, commit, found, folder)) as shards:
        planned, tensors = llama.plan(source, dtype, headers(shards))
        config = dataclasses.replace(planned, dtype=dtype or planned.dtype, quantize=quantize)
        llama.check_tokenizer(tokenizer_from or source)
        about = {"source": name, "commit": commit, "dtype": dtype, "quantize": quantize}
        atomic.resume_in_bucket(out, json.dumps(about))
        files = _by_file(tensors, out, dtype, quantize)
        _write_params(shards, files, dtype, quantize, out, place)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    say(f"at most {filesize.decimal(shards.most)} of weights on this disk, and {filesize.decimal(memory)} of memory")
    missing = sum(not file.record.exists() for file in files)
    complete = (out / "config.json").exists()  # after the records, which the host that completes it removes
    if missing and not complete:
        say(f"other hosts have {missing} of {len(files)} files left; the last host to finish completes {out}")
        return
    if not missing:
        _complete(out, [file.record for file in files], config, tokenizer_from or source)
    llama.say_written(out, config)


def _complete(out: Path, records: list[Path], config: CheckpointConfig, tokens: Path) -> None:
    """Makes the parts of all files the checkpoint's parameters, and writes the rest of it. Hosts may do so at once."""
    try:
        found = [json.loads(record.read_text()) for record in records]
    except FileNotFoundError:  # another host has completed it
        return
    parameters.write_index(out / "params", {part: names for each in found for part, names in each["parts"].items()})
    digests = checksums.digests(out, [f"params/{parameters.PARTS}"])
    checksums.write_digests(out, digests | {name: sha for each in found for name, sha in each["sha256"].items()})
    config_json.write_config(out, dataclasses.replace(config, tokenizer_class=tokenizer.bring(tokens, out)))
    buckets.remove(out / RECORDS)
    atomic.end_in_bucket(out)


def look(name: str, revision: str | None) -> tuple[str, dict[str, Shard]] | None:
    """The commit of a model on the hub, and its safetensors by name; None if it has none. Raises CheckpointError."""
    from huggingface_hub import HfApi

    info = folders.ask_hub(name, lambda: HfApi().model_info(name, revision=revision, files_metadata=True))
    files = {file.rfilename: file for file in info.siblings or ()}
    names = [name for name in files if _WEIGHTS.fullmatch(name)]
    if not names or info.sha is None:
        return None
    if folders.MODEL_FILES[0] in names:
        names = [folders.MODEL_FILES[0]]  # as in transformers, shards beside it do not count
    shard = lambda file: Shard(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
    return info.sha, {name: shard(files[name]) for name in sorted(names)}


def headers(shards: Shards) -> Source:
    """All tensors of the files, of which only the headers are downloaded now."""
    from huggingface_hub import HfApi

    def read(file: str, name: str) -> Any:
        return readers.open_safetensors(shards.path(file))[name].read()

    tensors: dict[str, Tensor] = {}
    for file in shards.found:
        get = functools.partial(HfApi().parse_safetensors_file_metadata, shards.repository, file)
        header = folders.ask_hub(shards.repository, functools.partial(get, revision=shards.commit))
        for name, info in header.tensors.items():
            dtype = readers.SAFETENSORS_DTYPES.get(info.dtype, info.dtype)
            tensor = Tensor(name, tuple(info.shape), dtype, file, functools.partial(read, file, name))
            if not readers.same(tensors.setdefault(name, tensor), tensor):
                raise CheckpointError(f"tensor {name} of {shards.repository} is in two files, with other values")
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
    title = f"converting {len(ours)} of {len(files)} files of {shards.repository}:"
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
