"""Help of options: their docstrings as flowing text, and no default that the text itself explains.

tyro keeps the line breaks of the source in the help of an option, so that lines end at random widths.
"""

import ast
import dataclasses
import inspect
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from jaxspec.options.shared import Option


def summary(kind: type) -> str:
    """The first paragraph of a command's docstring, for the list of commands."""
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())


def prepare(kind: Any, texts: bool) -> None:
    """Replaces the annotations of options by tyro's: those of a dataclass, or of all in an annotation, nested ones too.

    With `texts`, help will be printed, which needs the fields' docstrings.
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        for owner in kind.__mro__:
            if dataclasses.is_dataclass(owner):
                _annotate(owner, docstrings(owner) if texts else {})
        kinds = tuple(get_type_hints(kind, include_extras=True).values())
    else:
        kinds = get_args(kind)
    for inner in kinds:
        prepare(inner, texts)


def _annotate(owner: type, texts: dict[str, str]) -> None:
    fields = {field.name: field for field in dataclasses.fields(owner)}
    plain, hints = get_type_hints(owner), get_type_hints(owner, include_extras=True)
    for name in owner.__annotations__:
        own = hints[name].__metadata__ if get_origin(hints[name]) is Annotated else ()
        own = [each for each in own if isinstance(each, Option | str)]
        option = next((each for each in own if isinstance(each, Option)), Option())
        text = texts.get(name) or next((each for each in own if isinstance(each, str)), None)
        shown = tyro.conf.arg(
            name=option.name,
            help=text,
            metavar=option.metavar or ("TEXT" if plain[name] in (str, str | None) else None),
            help_behavior_hint="" if fields[name].default in (None, ()) or option.positional else None,
        )
        kind = Annotated[plain[name], shown, *own]
        kind = tyro.conf.Positional[kind] if option.positional else kind
        owner.__annotations__[name] = tyro.conf.UseAppendAction[kind] if option.repeated else kind
    if owner.__doc__:
        owner.__doc__ = "\n\n".join(" ".join(part.split()) for part in owner.__doc__.split("\n\n"))


def docstrings(owner: type) -> dict[str, str]:
    """The docstring under each field of a class's own body, on one line."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(owner))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found
