"""The checkpoint inside the package, named `builtin`: a small target with heads, and prompts for it."""

import importlib
import re
from pathlib import Path

from jaxspec.model.config import LlamaConfig

BUILTIN = "builtin"
FOLDER = Path(__file__).parent.parent / BUILTIN
_HUB = "jaxspec.commands.hub"  # lies above this package and loads all of conversion, hence imported when it is needed
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def locate(target: str | Path) -> Path:
    """The folder of a checkpoint or head: the package's own for `builtin` and for `builtin/heads/eagle`; for a hub id,
    ORG/NAME, that of the converted model."""
    first, *rest = Path(target).parts or ("",)
    inside = FOLDER.joinpath(*rest)
    if first == BUILTIN and (not rest or inside.exists()):
        return inside
    return from_hub(str(target)) if is_hub_id(target) else Path(target)


def is_hub_id(name: str | Path) -> bool:
    """Whether a name has the form ORG/NAME, and there is neither a file of that name nor a folder ORG."""
    return (
        _HUB_ID.fullmatch(str(name)) is not None and not Path(name).parent.exists() and Path(name).parts[0] != BUILTIN
    )


def from_hub(name: str, target: Path | None = None) -> Path:
    """`commands.hub.fetch`."""
    return importlib.import_module(_HUB).fetch(name, target)


def shape_on_hub(name: str) -> LlamaConfig:
    """`commands.hub.shape`."""
    return importlib.import_module(_HUB).shape(name)


def locate_prompts(prompts: str | Path) -> Path:
    """A file of prompts; the package's own for `builtin`."""
    return FOLDER / "prompts.jsonl" if str(prompts) == BUILTIN else Path(prompts)
