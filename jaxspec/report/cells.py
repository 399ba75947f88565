"""Content of tables and figures: numbers with their source, and text, which is always escaped."""

import dataclasses
import html
import json
from collections.abc import Sequence
from typing import Any

from jaxspec.report.runs import Run

NOTHING = "–"
Real = float | int


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """The format of a number: a unit to multiply it with, its digits, and a suffix."""

    digits: str
    after: str = ""
    unit: Real = 1

    def __call__(self, value: Real) -> str:
        return format(value * self.unit, self.digits).replace("-", "−") + self.after


@dataclasses.dataclass(frozen=True)
class Number:
    """A number of a run.

    Attributes:
        form: how it is written.
        of: where it comes from: run, method and keys of bench's JSON; of a derived one [operation, source, source].
        interval: the ends of its 95 % interval; () where it has none.
    """

    value: Real | None
    form: NumberFormat
    of: Sequence[Any]
    interval: "Sequence[Number]" = ()

    def __str__(self) -> str:
        return NOTHING if self.value is None else self.form(self.value)

    def html(self) -> str:
        """HTML of the number: the rounded value, with the exact one as an attribute, and the interval."""
        if self.value is None:
            return NOTHING
        found = f'<data {self.attributes()} value="{self.value!r}">{escape(str(self))}</data>'
        ends = ", ".join(end.html() for end in self.interval)
        return f'{found}<span class="interval"> [{ends}]</span>' if ends else found

    def attributes(self) -> str:
        """The HTML attribute that names the number's source."""
        return f'data-of="{escape(json.dumps(list(self.of)))}"'


PLAIN, TIMES, CHANGE = NumberFormat(".2f"), NumberFormat(".2f", "×"), NumberFormat("+.2f")
WHOLE, ONE, SHARE = NumberFormat(".0f"), NumberFormat(".1f"), NumberFormat(".3f")
MILLI, HUNDREDTHS = NumberFormat(".3g", unit=1e3), NumberFormat(".2f", unit=100)
FORMS = {
    "speedup": TIMES,
    "modelled_speedup": TIMES,
    "flat_speedup": TIMES,
    "eq14_speedup": TIMES,
    "tokens_per_second": ONE,
    "nodes_per_round": ONE,
    "nodes_drafted_per_round": ONE,
    "depth_per_round": ONE,
    "tokens": WHOLE,
    "rounds": WHOLE,
    "unexplained_divergences": WHOLE,
    "expected_calibration_error": SHARE,
    "quality": SHARE,
}


def number(run: Run, method: str, *keys: str | int, form: NumberFormat | None = None) -> Number:
    """A number of a run in its kind's format, with its interval if the run has one."""
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
    """Text as HTML shows it."""
    return html.escape(str(text), quote=True)


Cell = Number | str


def cell(content: Cell) -> str:
    """HTML of a cell's content."""
    return content.html() if isinstance(content, Number) else escape(content)
