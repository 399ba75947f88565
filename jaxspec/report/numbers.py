"""Numbers of a report, each with its format and its source in a run."""

import dataclasses
import html
import json
from collections.abc import Callable, Sequence
from typing import Any

from jaxspec.report.runs import Run

NOTHING = "–"
Real = float | int
NumberFormat = Callable[[Real], str]
PLAIN, TIMES, CHANGE = "{:.2f}".format, "{:.2f}×".format, "{:+.2f}".format
WHOLE, ONE, SHARE = "{:.0f}".format, "{:.1f}".format, "{:.3f}".format
MILLI, HUNDREDTHS = (lambda value: f"{1e3 * value:.3g}"), (lambda value: f"{100 * value:.2f}")


@dataclasses.dataclass(frozen=True)
class Number:
    """A number of a run.

    Attributes:
        of: its source: run, method and keys of bench's JSON; or [operation, source, source].
        interval: the ends of its 95 % interval; () without one.
    """

    value: Real | None
    form: NumberFormat
    of: Sequence[Any]
    interval: "Sequence[Number]" = ()

    def __str__(self) -> str:
        return NOTHING if self.value is None else self.form(self.value).replace("-", "−")

    def __html__(self) -> str:
        """HTML: the rounded value with its source, and the interval."""
        if self.value is None:
            return NOTHING
        found = f"<data {self.source('value')}>{escape(self)}</data>"
        ends = ", ".join(end.__html__() for end in self.interval)
        return f'{found}<span class="interval"> [{ends}]</span>' if ends else found

    def source(self, value: str = "data-value") -> str:
        """HTML attributes with the number's source and, named `value`, the exact number."""
        return f'data-of="{escape(json.dumps(list(self.of)))}" {value}="{self.value!r}"'


FORMS = {
    **dict.fromkeys(("speedup", "modelled_speedup"), TIMES),
    **dict.fromkeys(("tokens_per_second", "nodes_per_round", "depth_per_round"), ONE),
    "unexplained_divergences": WHOLE,
    "quality": SHARE,
}
"""The format of a number by its key; others have PLAIN."""


def number(run: Run, method: str, *keys: str | int, form: NumberFormat | None = None) -> Number:
    """A number of a run, with its interval if it has one."""
    kind = next((str(key) for key in reversed(keys) if str(key) in FORMS), "")
    *folder, last = keys
    ends = (*folder, f"{last}_interval")
    interval = [
        Number(end, PLAIN, [run.number, method, *ends, at]) for at, end in enumerate(run.value(method, *ends) or ())
    ]
    return Number(run.value(method, *keys), form or FORMS.get(kind, PLAIN), [run.number, method, *keys], interval)


def derived(operation: str, first: Number, second: Number, form: NumberFormat) -> Number:
    """`ratio` or `difference` of two numbers."""
    if first.value is None or not second.value:
        return Number(None, form, [])
    value = first.value / second.value if operation == "ratio" else first.value - second.value
    return Number(value, form, [operation, list(first.of), list(second.of)])


def escape(text: object) -> str:
    return html.escape(str(text))


def a_token(run: Run, name: str, *keys: str) -> Number:
    """Seconds of a part of decoding, in milliseconds per token."""
    return derived("ratio", number(run, name, *keys), number(run, name, "tokens"), MILLI)
