"""How settings are spelt on the command line, and errors that say so."""

from collections.abc import Callable
from typing import Any


def option(name: str) -> str:
    """How a field is spelt on the command line."""
    return "--" + name.replace("_", "-")


def require(settings: Any, holds: Callable[[Any], bool], words: str, *names: str) -> None:
    """Raises ValueError for the first of these fields that does not hold; `words` say what it must."""
    for name in names:
        if not holds(value := getattr(settings, name)):
            raise ValueError(f"{option(name)} must {words}, not {value}")
