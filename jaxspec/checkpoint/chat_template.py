"""Renders chat templates in a sandboxed Jinja environment, the same as transformers'.

It is described under "Writing a chat template" in transformers' documentation.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox

Messages = Sequence[Mapping[str, Any]]
_BEGIN, _END = "\ue000\u2062begin\u2063", "\ue000\u2062end\u2063"  # private characters: no text has them


def render(template: str, messages: Messages, variables: Mapping[str, Any], marks: bool = False) -> str:
    """The text of messages `{"role": …, "content": …}` without what is None; with `marks` around generation blocks.

    Raises ValueError without messages, jinja2.TemplateError if the template is damaged or refuses the conversation.
    """
    given = {"tools": None, "documents": None, **variables, "messages": _plain(messages)}
    return _compiled(template, marks).render(given)


def render_to_last(template: str, messages: Messages, variables: Mapping[str, Any]) -> str:
    """The text up to the end of the last message. Raises ValueError if the template changes that message."""
    *others, last = messages
    text = render(template, [*others, {**last, "content": last["content"] + _END}], variables)
    before, end, _ = text.rpartition(_END)
    if not end or last["content"].strip() not in before:
        raise ValueError("the chat template changes the last message, which was to be continued")
    return before


def render_marked(
    template: str, messages: Messages, variables: Mapping[str, Any]
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text, and the (start, end) in characters of each of the template's `{% generation %}` blocks."""
    text, spans = "", []
    for part in render(template, messages, variables, marks=True).split(_BEGIN):
        block, end, rest = part.partition(_END)
        if end:
            spans.append((len(text), len(text) + len(block)))
        text += block + rest
    return text, tuple(spans)


def names_read(template: str) -> frozenset[str]:
    """The names that a template reads; jinja2.TemplateSyntaxError if it is damaged."""
    return frozenset(jinja2.meta.find_undeclared_variables(_environment(False).parse(template)))


def _plain(messages: Messages) -> list[dict[str, Any]]:
    if not messages:
        raise ValueError("a conversation needs at least one message")
    plain = []
    for message in messages:
        kept = {key: value for key, value in message.items() if value is not None}
        # The names that templates and data sets give to an answer's reasoning.
        reasoning = next((kept[key] for key in ("reasoning_content", "thinking", "reasoning") if key in kept), None)
        both = {} if reasoning is None else {"reasoning_content": reasoning}
        plain.append({**({"thinking": reasoning} if both else {}), **kept, **both})
    return plain


@functools.lru_cache(maxsize=32)
def _compiled(template: str, marks: bool) -> jinja2.Template:
    return _environment(marks).from_string(template)


@functools.cache
def _environment(marks: bool) -> jinja2.Environment:
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_MarkedGeneration if marks else _Generation, jinja2.ext.loopcontrols],
    )
    made.filters["tojson"] = _tojson
    made.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        "dict": lambda *args, **kwargs: dict(*args, **kwargs),  # the class itself would open its attributes
    }
    return made


class _Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}` around what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012 (Jinja reads it from the class)

    def parse(self, parser: Any) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller: Any) -> str:
        return caller()


class _MarkedGeneration(_Generation):
    def _write(self, caller: Any) -> str:
        return _BEGIN + caller() + _END


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
