"""Names of settings on the command line, and errors that use these names."""

from collections.abc import Callable
from typing import Any


def option(name: str) -> str:
    """The command-line option of a field."""
    return "--" + name.replace("_", "-")


def require(settings: Any, holds: Callable[[Any], bool], words: str, *names: str) -> None:
    """Raises ValueError for the first of these fields that violates the condition; `words` complete "--field must
    ..."."""
    for name in names:
        if not holds(value := getattr(settings, name)):
            raise ValueError(f"{option(name)} must {words}, not {value}")
