"""The checkpoint inside the package, named `builtin`: a small target with heads, and prompts for it."""

from pathlib import Path

BUILTIN = "builtin"
FOLDER = Path(__file__).parent.parent / BUILTIN


def locate(target: str | Path) -> Path:
    """The folder of a checkpoint or head; the package's own for `builtin`, and for `builtin/heads/eagle`."""
    first, *rest = Path(target).parts or ("",)
    inside = FOLDER.joinpath(*rest)
    return inside if first == BUILTIN and (not rest or inside.exists()) else Path(target)


def locate_prompts(prompts: str | Path) -> Path:
    """A file of prompts; the package's own for `builtin`."""
    return FOLDER / "prompts.jsonl" if str(prompts) == BUILTIN else Path(prompts)
