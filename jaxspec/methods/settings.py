"""Settings of a strategy, between text and values."""

import dataclasses
import re
import typing
from typing import Any


def settings_of(part: Any) -> list[dataclasses.Field]:
    """The fields of a strategy that users type."""
    return [field for field in dataclasses.fields(part) if field.init and not field.metadata.get("fitted")]


def build_part(kind: Any, settings: list[str], text: str) -> Any:
    """A strategy with these settings, each written KEY=VALUE; a ValueError names the method's `text`."""
    fields = {field.name: field for field in settings_of(kind)}
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key not in fields or not equals:
            offers = ", ".join(fields) or "none"
            raise ValueError(
                f"method {text!r}: {kind.name} has no setting {setting!r}; write KEY=VALUE with one of: {offers}"
            )
        if key in values:
            raise ValueError(f"method {text!r}: {kind.name} has {key} twice")
        values[key] = read_value(fields[key], value, f"method {text!r}: {kind.name},{setting}")
    return kind(**values)


def check_settings(kind: Any) -> None:
    """Raises ValueError for a strategy's class that the text of a method could not name, or not build."""
    if "__dataclass_fields__" not in dir(kind):
        raise ValueError(f"{kind} is not a dataclass; decorate it with @dataclasses.dataclass(frozen=True)")
    if "name" not in dir(kind) or not isinstance(kind.name, str) or not re.fullmatch(r"[\w.-]+", kind.name):
        raise ValueError(f"{kind} needs a `name` of letters, digits, and the characters . _ -")
    types = typing.get_type_hints(kind)
    for field in settings_of(kind):
        field.type = types[field.name]  # it is text in a module with `from __future__ import annotations`
        if "parse" not in field.metadata and field.type not in (bool, int, float, str):
            raise ValueError(
                f"setting {field.name} of {kind.name} has the type {field.type}, which is not read from text; give the "
                'field metadata={"parse": ..., "show": ...}, from text and to text'
            )
        if field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"setting {field.name} of {kind.name} has no default, and needs one: it may be left out")


def read_value(field: dataclasses.Field, text: str, where: str) -> Any:
    """The value of a strategy's setting, from its text. Raises ValueError that begins with `where`."""
    if parse := field.metadata.get("parse"):
        return parse(text)
    kind: Any = typing.get_origin(field.type) or field.type
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{where}: write true or false")
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{where}: {field.name} must be a {'whole ' * (kind is int)}number, not {text!r}") from None


def show_settings(part: Any) -> str:
    """`,length=4` and the like: all settings of a strategy."""

    def show(field: dataclasses.Field) -> str:
        value = getattr(part, field.name)
        text = field.metadata["show"](value) if "show" in field.metadata else str(value)
        return f",{field.name}={text.lower() if isinstance(value, bool) else text}"

    return "".join(map(show, settings_of(part)))


def describe_settings(kind: Any) -> str:
    """`length=4` and the like: the settings of a strategy with their defaults, long ones cut."""
    shown = show_settings(kind())[1:].split(",")
    return ", ".join(text if len(text) < 30 else text[:27] + "..." for text in shown)
