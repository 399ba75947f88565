"""A method with one setting changed: the points of a sweep."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxspec.methods.method import HISTORY, Method
from jaxspec.methods.settings import read_value, settings_of

ROLES = ("drafter", "builder", "controller")
HEAD = "head"


@dataclasses.dataclass(frozen=True)
class Variant:
    """One value of a setting, and the method that has it."""

    value: int | float | bool | str  # the text that was typed where the setting is no number
    method: Method


def vary(method: Method, setting: str, values: Sequence[str]) -> list[Variant]:
    """The method once with each value of a setting.

    Args:
        setting: a field of the drafter, builder or controller, such as `length`; `chain.length` where several parts
            have it; `head` for @HEAD; `history` where there is a head.
        values: written as in a method's text.

    Raises:
        ValueError: the method has no such setting (the message lists its settings), several parts have it, a value does
            not fit, or there are fewer than two distinct ones.
    """
    known = _settings(method)
    found = [full for full in known if setting in (full, full.partition(".")[2])]
    if not found:
        offers = f"its settings are {', '.join(known)}" if known else "it has none"
        raise ValueError(f"the method {method} has no setting {setting!r}; {offers}")
    if len(found) > 1:
        raise ValueError(f"several parts of {method} have a setting {setting!r}: write {' or '.join(found)}")
    variants = [_variant(method, *known[found[0]], value) for value in values]
    seen = set[Method]()
    for text, variant in zip(values, variants, strict=True):
        if variant.method in seen:
            raise ValueError(f"{setting} has the value {text!r} twice")
        seen.add(variant.method)
    if len(variants) < 2:
        raise ValueError(f"a sweep needs two or more values of {setting}, such as {setting}=A,B")
    return variants


def _settings(method: Method) -> dict[str, tuple[str | None, dataclasses.Field]]:
    """The field of each setting and the part that has it, by the name to type; None: the method itself."""
    if method.drafter.name == "plain":
        return {}
    parts = [(role, getattr(method, role)) for role in ROLES]
    known: dict[str, tuple[str | None, dataclasses.Field]] = {
        f"{part.name}.{field.name}": (role, field) for role, part in parts for field in settings_of(part)
    }
    own = () if method.head is None else (HEAD, HISTORY)
    return known | {field.name: (None, field) for field in dataclasses.fields(method) if field.name in own}


def _variant(method: Method, role: str | None, field: dataclasses.Field, text: str) -> Variant:
    if field.name == HEAD and not text:
        raise ValueError("a head needs a name")
    part: Any = method.drafter if role is None else getattr(method, role)
    value: Any = text if field.name == HEAD else read_value(field, text, f"{part.name},{field.name}={text}")
    changed = {field.name: value} if role is None else {role: dataclasses.replace(part, **{field.name: value})}
    return Variant(value if isinstance(value, int | float) else text, dataclasses.replace(method, **changed))
