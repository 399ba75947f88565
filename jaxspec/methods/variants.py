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
    """One value of a setting, and the method that has it.

    Attributes:
        value: int, float or bool where the setting is one, else the text that was typed.
    """

    value: int | float | bool | str
    method: Method


def vary(method: Method, setting: str, values: Sequence[str]) -> list[Variant]:
    """The method once with each value of a setting.

    Args:
        setting: a field of the drafter, builder or controller, such as `length`; `chain.length` where several parts
            have it; `head` for @HEAD; `history` where there is a head.
        values: written as in a method's text.

    Raises:
        ValueError: the method has no such setting (it says which it has), several parts have it, a value does not fit,
            or there are fewer than two distinct ones.
    """
    role, name = find_setting(method, setting)
    variants = [_variant(method, role, name, value) for value in values]
    seen = set[Method]()
    for text, variant in zip(values, variants, strict=True):
        if variant.method in seen:
            raise ValueError(f"{setting} has the value {text!r} twice")
        seen.add(variant.method)
    if len(variants) < 2:
        raise ValueError(f"a sweep needs two or more values of {setting}, such as {setting}=A,B")
    return variants


def find_setting(method: Method, setting: str) -> tuple[str, str]:
    """The part (a field of `Method`) that has a setting, and its name; `head` and `history` are parts themselves."""
    known = {f"{part}.{name}": (role, name) for role, part, name in _settings(method)}
    if method.head is not None:
        known |= {name: (name, name) for name in (HEAD, HISTORY)}
    found = [full for full in known if setting in (full, full.partition(".")[2])]
    if not found:
        offers = f"its settings are {', '.join(known)}" if known else "it has none"
        raise ValueError(f"the method {method} has no setting {setting!r}; {offers}")
    if len(found) > 1:
        raise ValueError(f"several parts of {method} have a setting {setting!r}: write {' or '.join(found)}")
    return known[found[0]]


def _settings(method: Method) -> list[tuple[str, str, str]]:
    """(field of `Method`, name of the part, name of the setting) of all settings; plain decoding has none."""
    if method.drafter.name == "plain":
        return []
    parts = [(role, getattr(method, role)) for role in ROLES]
    return [(role, part.name, field.name) for role, part in parts for field in settings_of(part)]


def _variant(method: Method, role: str, name: str, text: str) -> Variant:
    if role == HEAD:
        if not text:
            raise ValueError("a head needs a name")
        return Variant(text, dataclasses.replace(method, head=text))
    if role == HISTORY:
        known = {field.name: field for field in dataclasses.fields(Method)}
        number = read_value(known[HISTORY], text, f"{method.drafter.name},{HISTORY}={text}")
        return Variant(number, dataclasses.replace(method, history=number))
    part: Any = getattr(method, role)
    field = next(field for field in dataclasses.fields(part) if field.name == name)
    value = read_value(field, text, f"{part.name},{name}={text}")
    changed: Any = {role: dataclasses.replace(part, **{name: value})}
    return Variant(value if isinstance(value, int | float) else text, dataclasses.replace(method, **changed))
