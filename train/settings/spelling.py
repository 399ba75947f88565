"""How settings are spelt on the command line: in errors, and in what a run remembers of them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PLACES = ("out", "run_dir", "cache_features")
_NO_MATTER = ("evaluate_every", "save_every", "trials", "coordinator", "processes", "process_id")


def option(name: str) -> str:
    """How a field is spelt on the command line."""
    return "--" + name.replace("_", "-")


def require(settings: Any, holds: Callable[[Any], bool], words: str, *names: str) -> None:
    """Raises ValueError for the first of these fields that does not hold; `words` say what it must."""
    for name in names:
        if not holds(value := getattr(settings, name)):
            raise ValueError(f"{option(name)} must {words}, not {value}")


def as_typed(name: str, settings: Any) -> dict[str, Any]:
    """What decides a run, as it was typed: every option but places, how often to measure and save, how far to go."""

    def flat(value: Any) -> dict[str, Any]:
        found = {}
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if dataclasses.is_dataclass(inner):
                found |= flat(inner)
            elif field.name not in (*_PLACES, *_NO_MATTER):
                found[option(field.name)] = str(inner) if isinstance(inner, Path) else inner
        return found

    return {"command": name, **flat(settings)}
