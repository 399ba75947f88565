"""Arguments as users pass them: numbers of the right kind and in range, and options by their names."""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number. Raises ValueError about `name`, as users call it, for anything else, 16.0 too."""
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    if least is not None and found < least:
        raise ValueError(f"{name} must be at least {least}, not {found}")
    if most is not None and found > most:
        raise ValueError(f"{name} must be at most {most}, not {found}")
    return found


def number(name: str, value: Any) -> float:
    """A finite number. Raises ValueError about `name`, as users call it, for anything else, such as text."""
    try:
        if isinstance(value, str | bytes) or str(value) in ("True", "False"):  # also a boolean of NumPy or JAX
            raise TypeError
        found = float(value)
    except (TypeError, OverflowError):
        raise ValueError(f"{name} must be a number, not {value!r}") from None
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a finite number, not {found}")
    return found


def one_each(name: str, value: Any, count: int) -> list[Any]:
    """The value `count` times; of a sequence or an array, its values. Raises ValueError unless these are `count`."""
    if isinstance(value, str | bytes):
        return [value] * count
    try:
        values = list(value)
    except TypeError:  # a number, or an array of no axes
        return [value] * count
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values for {count} prompts; give one, or one a prompt")
    return values


def option_name(field: str) -> str:
    """The command-line option of a field."""
    return "--" + field.replace("_", "-")


def check_options(options: Any, holds: Callable[[Any], bool], words: str, *names: str) -> None:
    """Raises ValueError for the first of these fields that violates the condition; `words` complete "--field must"."""
    for name in names:
        if not holds(value := getattr(options, name)):
            raise ValueError(f"{option_name(name)} must {words}, not {value}")


def check_defaults(options: Any, words: str, *names: str) -> None:
    """Raises ValueError for the first of these fields not at its default; all have an effect only with `words`."""
    for name in _given(options, names):
        raise ValueError(f"{option_name(name)} has an effect only with {words}: give both or neither")


def check_unused(options: Any, words: str, *names: str) -> None:
    """Raises ValueError for the first of these fields not at its default; none has an effect with `words`."""
    for name in _given(options, names):
        raise ValueError(f"{option_name(name)} has no effect with {words}: leave out one of them")


def _given(options: Any, names: Iterable[str]) -> list[str]:
    """Those of these fields that are not at their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    return [name for name in names if getattr(options, name) != defaults[name]]
