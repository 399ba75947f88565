"""Models to convert file by file, of which this disk never holds the whole: on the hub, or in a bucket."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import folders, readers
from jaxspec.host import atomic, buckets

_WHOLE = folders.MODEL_FILES[0]
_INDEX = f"{_WHOLE}{folders.INDEX}"
_SHARDS = re.compile(r"model-\d+-of-\d+\.safetensors")
_LONGEST_HEADER = 100_000_000  # bytes; the limit of safetensors

Header = Mapping[str, tuple[str, tuple[int, ...]]]
"""Of a safetensors file: the dtype, in its own names, and the shape of each tensor."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of weights."""

    name: str
    size: int  # in bytes
    digest: str | None  # the hub's SHA-256 or the bucket's MD5, where there is one


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
        tensors = folders.ask_hub(self.name, read).tensors
        return {name: (info.dtype, tuple(info.shape)) for name, info in tensors.items()}

    def download(self, shard: Shard, scratch: Path) -> Path:
        """The file in the folder `scratch`. Raises CheckpointError if it cannot be fetched, or is damaged."""
        from huggingface_hub import hf_hub_download

        file, where = scratch / shard.name, {"revision": self.version, "local_dir": scratch}
        atomic.check_room(file, shard.size)
        folders.ask_hub(self.name, lambda: hf_hub_download(self.name, shard.name, **where))
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
    """A Hugging Face folder in a bucket; `shards` are its safetensors files, by name."""

    folder: Path
    shards: Mapping[str, Shard]

    @property
    def name(self) -> str:
        return str(self.folder)

    @property
    def version(self) -> str:
        """A hash of sizes and digests of the files."""
        about = json.dumps([dataclasses.astuple(shard) for shard in self.shards.values()])
        return hashlib.sha256(about.encode()).hexdigest()

    def configs(self, scratch: Path) -> Path:
        return folders.copy(self.folder, scratch / "configs", weights=())

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
    if buckets.in_bucket(folder := buckets.to_path(source)):
        folders.check_no_revision(source, revision)
        there = {file.name: file for file in folder.iterdir()} if folder.is_dir() else {}
        shard = lambda name: Shard(name, there[name].stat().st_size, buckets.md5(there[name]))
        found = {name: shard(name) for name in _weights(there, lambda: folder / _INDEX)}
        return BucketModel(folder, found) if found else None
    if not folders.is_hub_id(source):
        return None
    from huggingface_hub import HfApi, hf_hub_download

    info = folders.ask_hub(source, lambda: HfApi().model_info(source, revision=revision, files_metadata=True))
    files = {file.rfilename: file for file in info.siblings or ()}
    sha256 = lambda file: file.lfs.sha256 if file.lfs else None
    index = lambda: Path(folders.ask_hub(source, lambda: hf_hub_download(source, _INDEX, revision=info.sha)))
    found = {name: Shard(name, files[name].size or 0, sha256(files[name])) for name in _weights(files, index)}
    return HubModel(source, info.sha, found) if found and info.sha is not None else None


def _weights(names: Collection[str], index: Callable[[], Path]) -> list[str]:
    """Of the files of a model, those with weights; `index` fetches the index of its shards. Raises CheckpointError."""
    if _WHOLE in names:
        return [_WHOLE]  # as in transformers, shards beside it do not count
    if _INDEX in names:
        return readers.shards_in(index(), lambda name: name in names)
    return sorted(name for name in names if _SHARDS.fullmatch(name))
