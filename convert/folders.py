"""Source folders: local or fetched from the hub, their JSON files, and what a folder holds in place of a model."""

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rich import filesize

from jaxspec.checkpoint import config_json, heads, hub
from jaxspec.checkpoint.builtin import HUB_ID, is_hub_id
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.tokenizer import FILES, VOCABULARIES
from jaxspec.host import atomic, buckets
from jaxspec.host.buckets import in_bucket, to_path
from jaxspec.host.terminal import called, progress

_CONFIGS = ["config.json", "generation_config.json", "params.json", "adapter_config.json", *FILES]
# Weight files at the top of a repository. Safetensors come first, because reading them does not need PyTorch.
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "consolidated*.safetensors", "consolidated.*.pth")
HEAD_WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", *WEIGHTS)
# In place of weights where a tokenizer is all that is read; without any of them it is in the GGUF file.
TOKENIZERS = ("tokenizer.json", *VOCABULARIES)
MODEL_FILES = ("model.safetensors", "pytorch_model.bin")
INDEX = ".index.json"
_POINTER = b"version https://git-lfs.github.com/spec/"
_RELEASE = "which is not read; convert the model's Hugging Face release in safetensors"
# Patterns of names, with what such a file is and what to do. The first that occurs is reported.
_KINDS = (
    ("*.incomplete *.part *.crdownload *.aria2", "an unfinished download; finish it"),
    ("adapter_model.*", "the weights of an adapter such as LoRA's; merge it into its base model and convert that"),
    ("model-*-of-*.safetensors pytorch_model-*-of-*.bin", "a shard; download the index of the shards beside it"),
    ("consolidated*", "a file of Meta's or Mistral's format; download its params.json beside it"),
    ("*.onnx onnx/*.onnx openvino_model* *.engine *.mlpackage", f"a compiled model, {_RELEASE}"),
    ("flax_model* tf_model* *.h5 saved_model.pb weights*.npz *.nemo", f"another framework's format, {_RELEASE}"),
    ("global_step* *zero_pp_rank_* mp_rank_*", "a part of a DeepSpeed checkpoint; join it with zero_to_fp32.py"),
    ("*.distcp */*.distcp", "a part of an FSDP checkpoint; join it with `accelerate merge-weights`"),
    ("medusa_lm_head.*", "Medusa heads; download their config.json beside it"),
    ("*.gguf */*.gguf", "a GGUF model; name that file itself"),
    ("*.safetensors", "a file of another name; if it is the model, call it model.safetensors"),
    ("*.bin *.pt *.pth", "a file of another name; if it is the model's state dict, call it pytorch_model.bin"),
    ("*/config.json */*/config.json */params.json", "a model in a folder of its own; name that folder"),
    ("tokenizer* preprocessor_config.json processor_config.json", "a tokenizer or processor; download the model"),
)


def locate(source: str, revision: str | None, weights: tuple[str, ...] = WEIGHTS) -> Path:
    """A local folder, or one with the configs, the tokenizer and the first of `weights` of a hub model; never code."""
    check_revision(source, revision)
    if not is_hub_id(source):
        return to_path(source)
    from huggingface_hub import snapshot_download

    if weights and (names := _names_on_hub(source, revision)) is not None:
        weights = (_pattern(source, names, weights),)
    folder = Path()
    for pattern in weights or ("",):
        download = functools.partial(snapshot_download, source, revision=revision, allow_patterns=_files(pattern))
        folder = Path(hub.ask(source, download))
        if pattern and any(folder.glob(pattern)):
            break
    return folder


def _names_on_hub(source: str, revision: str | None) -> list[str] | None:
    """The files of a model; None if the hub cannot be reached, where its cache may have the model."""
    from huggingface_hub import HfApi

    try:
        return [file.rfilename for file in HfApi().model_info(source, revision=revision).siblings or ()]
    except Exception:  # the download then fails too, with a clear error
        return None


def _pattern(source: str, names: Sequence[str], weights: tuple[str, ...]) -> str:
    """The pattern of the weights to fetch: the first that the model has. Raises CheckpointError if it has none."""
    if pattern := _first(weights, names):
        return pattern
    later = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf")  # shards of a model but the first
    models = [name for name in names if _is_like(name, "*.gguf") and not later.fullmatch(name)]
    if len(models) == 1:
        return "*.gguf"
    if models:
        raise CheckpointError(
            f"{source} holds several GGUF models, {', '.join(models)}; download one with `hf download`, and name it"
        )
    if "adapter_config.json" in names or weights == TOKENIZERS:
        return ""  # an adapter's config names its base model
    found = _in_its_place(names)
    raise CheckpointError(f"{source} on the hub holds no weights that can be read{f', but {found}' if found else ''}")


def _first(patterns: Iterable[str], names: Iterable[str]) -> str:
    """The first pattern that one of the names matches; empty if there is none."""
    return next((pattern for pattern in patterns if any(_is_like(name, pattern) for name in names)), "")


def _is_like(name: str, pattern: str) -> bool:
    """Whether a relative path matches a pattern that has as many parts."""
    return name.count("/") == pattern.count("/") and PurePosixPath(name).match(pattern)


def _files(weights: str) -> list[str]:
    """The patterns of the files to fetch with the weights of a pattern, or without any."""
    return [*_CONFIGS, *([weights, f"{weights}{INDEX}"] if weights else [])]


@contextlib.contextmanager
def local(source: str, revision: str | None, weights: tuple[str, ...] = WEIGHTS) -> Iterator[Path]:
    """Yields the folder of `locate`; for a source in a bucket a copy on this disk, which is removed at the end."""
    if not in_bucket(there := to_path(source)):
        yield locate(source, revision, weights)
        return
    check_revision(source, revision)
    with scratch(source) as folder:
        place = folder / there.name
        with named(place, source):
            yield copy(there, place, weights)


@contextlib.contextmanager
def named(place: Path, source: str) -> Iterator[None]:
    """Remarks and errors in the block show `source`, not the name `place` of its copy on this disk."""
    with called(place, source):
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(str(place), source)) from error


def scratch(name: str) -> contextlib.AbstractContextManager[Path]:
    """A folder for files of a model that is elsewhere, while they are converted."""
    from huggingface_hub import constants

    # Beside the hub's cache, for jaxspec's own may be in a bucket.
    place = Path(constants.HF_HUB_CACHE).with_name("jaxspec-shards")
    advice = "set HF_HUB_CACHE to a folder on another disk"
    return atomic.scratch(place / name.replace("/", "--").replace(":", ""), advice)


def copy(there: Path, place: Path, weights: tuple[str, ...]) -> Path:
    """Copies a file from a bucket, or a folder's configs, tokenizer and weights of the first pattern that it has."""
    files = {place: there}
    if not there.is_file():
        stored = buckets.files_under(there) or there.iterdir()  # which raises if there is no such folder
        names = {file.relative_to(there).as_posix(): file for file in stored}
        wanted = _files(_first((*weights, "*.gguf"), names) if weights else "")
        files = {place / name: file for name, file in names.items() if _first(wanted, [name])}
        place.mkdir(parents=True, exist_ok=True)
    sizes = {to: file.stat().st_size for to, file in files.items()}
    atomic.check_room(place, sum(sizes.values()))
    with progress(f"downloading {there}:", sum(sizes.values()), form=filesize.decimal) as shown:
        for to, file in files.items():
            to.parent.mkdir(exist_ok=True)
            buckets.download(file, to, buckets.md5(file))
            shown.advance(sizes[to])
    return place


def check_revision(source: str, revision: str | None) -> None:
    """Raises CheckpointError for an empty revision, and for one of an argument that is not a hub id."""
    if revision == "":
        raise CheckpointError("--revision is empty; name one or omit it")
    if revision is not None and not is_hub_id(source):
        raise CheckpointError(f"--revision needs a hub id, and {source} is not one")


def weights_file(path: Path) -> Path | None:
    """The file of weights in a Hugging Face folder, which may exist as shards only; None without weights."""
    whole = (path / name for name in MODEL_FILES)
    return next((file for file in whole if file.exists() or file.with_name(f"{file.name}{INDEX}").exists()), None)


def check_present(file: Path) -> None:
    """Raises CheckpointError for a file that is not downloaded: a git-LFS pointer, or an unfinished download."""
    with contextlib.suppress(OSError), file.open("rb") as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(f"{file} is a pointer of git-LFS and not the file; run `git lfs pull` in its folder")
    if (control := file.with_name(f"{file.name}.aria2")).exists():  # the file then has its full size, with holes
        raise CheckpointError(f"{file} is an unfinished download, since {control.name} is beside it; let aria2 finish")


def format_of(path: Path) -> str | None:
    """The jaxspec format in the config.json of a folder: a checkpoint's or a head's; None for other folders."""
    file = path / "config.json"
    name = read_json(file).get("format") if file.is_file() else None
    return name if name in (config_json.FORMAT, heads.FORMAT) else None


def read_config(source: Path) -> dict[str, Any]:
    """The config.json of a folder to convert. Raises CheckpointError if there is none, or it is jaxspec's own."""
    if not source.is_dir():
        raise CheckpointError(_no_folder(source))
    if (source / "adapter_config.json").is_file():
        base = read_json(source / "adapter_config.json").get("base_model_name_or_path")
        raise CheckpointError(
            f"{source} is an adapter such as LoRA's; merge it into its base model ({base}) with PEFT, and convert that"
        )
    if not (source / "config.json").is_file():
        raise CheckpointError(instead(source, "no config.json"))
    if ours := format_of(source):
        kind, more = ("checkpoint", "") if ours == config_json.FORMAT else ("head", ", or cut it with --draft-vocab")
        raise CheckpointError(f"{source} is a jaxspec {kind} already; use it as it is, or `export` it{more}")
    return read_json(source / "config.json")


def _no_folder(path: Path) -> str:
    """A sentence on a path that is no folder, and what to name."""
    name, _, revision = str(path).partition("@")
    if path.exists():
        return f"{path} is a file; name the folder that holds it and its config.json"
    if HUB_ID.fullmatch(str(path)) and (org := path.parent).exists():
        return f"there is no folder {path}, and it is not looked up on the hub, since there is a folder {org}"
    if revision and HUB_ID.fullmatch(name):
        return f"{path} is not a folder; write {name} --revision {revision} for that revision on the hub"
    return f"{path} is not a folder; name a Hugging Face or Meta folder, or a hub id"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CheckpointError if it is missing, invalid, or not an object."""
    check_present(path)
    try:
        values = config_json.parse_json(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds no JSON object; download it again")
    return values


def instead(path: Path, missing: str) -> str:
    """A sentence on what is `missing` in a folder, what it holds in its place, and what to do."""
    if not (files := sorted(path.iterdir())):
        return f"{path} holds {missing}: it is empty"
    if broken := [file for file in files if file.is_symlink() and not file.exists()]:
        return f"{path} holds {missing}: {broken[0].name} is a link to {broken[0].readlink()}, which is not there"
    names = [file.relative_to(path).as_posix() for depth in ("*", "*/*", "*/*/*") for file in path.glob(depth)]
    if weights_file(path) is None and (found := _in_its_place(names)):
        return f"{path} holds {missing}, but {found}"
    return f"{path} holds {missing}; check that the download is complete"


def _in_its_place(names: Iterable[str]) -> str:
    """The first file of a form that is not read, with what it is and what to do (`_KINDS`); empty if there is none."""
    for patterns, what in _KINDS:
        if found := sorted(name for name in names if _first(patterns.split(), [name])):
            return f"{found[0]}: {what}"
    return ""
