"""Charts as SVG: axes, lines, bars. Their colours are the page's CSS colours, so they follow its light and dark
themes."""

import dataclasses
import math
from collections.abc import Sequence

from jaxspec.report.tables import Number, Real, escape

COLOURS = 24
"""Colours of methods that the page has: classes s0 to s23. The others are `reference`, `published`, `chains`, and
`part0` to `part3`."""
WIDTH = 400  # of a chart; on a phone it is shown at nearly this size, so that its text can be read
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 38
SIDE = 2  # left of bars
NAME = 15  # height of a line with a name above bars
LONGEST = 54  # a name that fits in a line


@dataclasses.dataclass(frozen=True)
class Point:
    """A place in a chart, and the number that it shows."""

    x: Real
    y: Number


@dataclasses.dataclass(frozen=True)
class Series:
    """A line, its points in order of x.

    Attributes:
        colour: its CSS class.
        kind: `line`, `dashed` for what a paper published or is not measured, or `steps`.
    """

    name: str
    points: Sequence[Point]
    colour: str
    kind: str = "line"


def ticks(low: Real, high: Real, about: int = 5) -> list[Real]:
    """Round numbers from `low` to `high`, about as many as wanted."""
    rough = max(high - low, 1e-9) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def text(value: Real) -> str:
    """A tick's number."""
    return f"{value:g}"


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """An entry for each series: name, colour, kind."""
    items = "".join(
        f'<li><svg viewBox="0 0 22 8" aria-hidden="true"><path class="{colour} {kind}" d="M1 4H21"/></svg>'
        f"{escape(name)}</li>"
        for name, colour, kind in entries
    )
    return f'<ul class="legend">{items}</ul>'


def lines(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    y_range: tuple[Real, Real] | None = None,
    x_ticks: Sequence[Real] | None = None,
    diagonal: bool = False,
    dots: bool = True,
) -> str:
    """A line chart; every point carries its number.

    Args:
        y_range: None: from 0 to what is needed.
        diagonal: also y = x.
        dots: draw a mark at every point. Without, points are invisible but keep their numbers.
    """
    width, height = WIDTH, 240
    shown = [point for each in series for point in each.points if point.y.value is not None]
    if not shown:
        return ""
    low, high = y_range or (0.0, 1.08 * max(point.y.value or 0 for point in shown))
    marks = list(x_ticks) if x_ticks is not None else ticks(min(p.x for p in shown), max(p.x for p in shown))
    left, right = min([*marks, *(p.x for p in shown)]), max([*marks, *(p.x for p in shown)])
    across, down = width - LEFT - RIGHT, height - TOP - BOTTOM

    def x(value):
        return round(LEFT + across * ((value - left) / (right - left) if right > left else 0.5), 1)

    def y(value):
        return round(TOP + down * (1 - (value - low) / ((high - low) or 1)), 1)

    parts = [_frame(width, height, [(y(t), text(t)) for t in ticks(low, high)], [(x(t), text(t)) for t in marks])]
    parts.append(_labels(width, height, x_label, y_label))
    if diagonal:
        parts.append(f'<path class="diagonal" d="M{x(left)} {y(left)}L{x(right)} {y(right)}"/>')
    for each in series:
        places = [(x(p.x), y(p.y.value), p) for p in each.points if p.y.value is not None]
        if len(places) > 1:
            path = "L".join(f"{px} {py}" for px, py, _ in places)
            parts.append(f'<path class="{each.colour} {each.kind}" d="M{path}"/>')
        parts += [
            f'<circle class="{each.colour}{"" if dots else " unseen"}" cx="{px}" cy="{py}" r="{3.2 if dots else 5}" '
            f"{_source(p.y)}><title>{escape(each.name)}, {text(round(p.x, 4))}: {escape(p.y)}</title></circle>"
            for px, py, p in places
        ]
    return _svg(width, height, y_label, parts)


def bars(groups: Sequence[tuple[str, Sequence[tuple[str, str, Number]]]], *, x_label: str, baseline: Real) -> str:
    """Horizontal bars in groups, each under its name; numbers are written behind their bars.

    Args:
        groups: (group, (name, colour, number) of each bar).
        baseline: a value that gets a line, such as 1 for plain decoding's speed.
    """
    bar, gap = 13, 7
    high = 1.02 * max([*(number.value or 0 for _, each in groups for _, _, number in each), baseline])

    def x(value):
        return round(SIDE + (WIDTH - SIDE - 40) * max(value, 0) / high, 1)

    rows, at = [], TOP
    for name, each in groups:
        rows.append(_name(name, at))
        at += NAME
        for label, colour, number in each:
            end = x(number.value or 0)
            size = f'y="{at + 1}" width="{round(end - SIDE, 1)}" height="{bar - 2}" rx="2"'
            rows.append(_rect(colour, f'x="{SIDE}" {size}', number, f"{name}, {label}: {number}"))
            rows.append(f'<text class="value" x="{end + 5}" y="{at + bar / 2}" dy=".35em">{escape(number)}</text>')
            at += bar
        at += gap
    height = at - gap + BOTTOM
    rows.append(f'<path class="baseline" d="M{x(baseline)} {TOP - 4}V{height - BOTTOM}"/>')
    return _bar_chart(height, [(x(t), text(t)) for t in ticks(0, high)], x_label, rows)


def stacks(rows: Sequence[tuple[str, Sequence[tuple[str, str, Number]]]], *, x_label: str, unit: Real = 1.0) -> str:
    """Horizontal bars of parts, each bar under its name; a part below zero is not drawn, but keeps its number.

    Args:
        unit: the axis shows the values times this.
    """
    bar, gap = 12, 5
    positive = lambda parts: sum(max(number.value or 0, 0) for _, _, number in parts)
    high = 1.03 * max([positive(parts) for _, parts in rows] + [1e-9])
    across = WIDTH - SIDE - RIGHT
    shapes, at = [], TOP
    for name, parts in rows:
        shapes.append(_name(name, at))
        at += NAME
        begin = float(SIDE)
        for label, colour, number in parts:
            wide = across * max(number.value or 0, 0) / high
            size = f'x="{begin:.1f}" y="{at}" width="{wide:.1f}" height="{bar}"'
            shapes.append(_rect(colour, size, number, f"{name}, {label}: {number}"))
            begin += wide
        at += bar + gap
    marks = [(round(SIDE + across * t / (high * unit), 1), text(t)) for t in ticks(0, high * unit)]
    return _bar_chart(at - gap + BOTTOM, marks, x_label, shapes)


def histogram(counts: Sequence[tuple[int, Number]], colour: str, *, x_label: str) -> str:
    """A small histogram: (value, rounds that have it); nothing where there are no rounds."""
    if not counts:
        return ""
    width, height, left, bottom = 230, 118, 12, 30
    last = max(value for value, _ in counts)
    most = max(number.value or 0 for _, number in counts)
    slot = (width - 2 * left) / (last + 1)
    wide = max(min(slot - 1, 16), 1.2)

    def x(value):
        return left + slot * (value + 0.5)

    shapes = []
    for value, number in counts:
        tall = (height - bottom - 8) * (number.value or 0) / most
        place = f'x="{x(value) - wide / 2:.1f}" y="{height - bottom - tall:.1f}"'
        size = f'{place} width="{wide:.1f}" height="{tall:.1f}"'
        shapes.append(_rect(colour, size, number, f"{value}: {number} rounds"))
    marks = [(round(x(t), 1), text(t)) for t in ticks(0, last, 4) if t == int(t)]
    frame = f'<path class="frame" d="M{left} {height - bottom}H{width - left}"/>' + "".join(
        f'<text class="tick" x="{at}" y="{height - bottom + 13}">{label}</text>' for at, label in marks
    )
    label = f'<text class="axis" x="{width / 2}" y="{height - 3}">{escape(x_label)}</text>'
    return _svg(width, height, x_label, [frame, label, *shapes])


def _frame(
    width: int, height: Real, ys: Sequence[tuple[Real, str]], xs: Sequence[tuple[Real, str]], left: int = LEFT
) -> str:
    """The axes: horizontal lines at `ys`, ticks at `xs`."""
    floor = height - BOTTOM
    grid = "".join(
        f'<path class="grid" d="M{left} {at}H{width - RIGHT}"/><text class="tick y" x="{left - 7}" y="{at}" '
        f'dy=".35em">{label}</text>'
        for at, label in ys
    )
    below = "".join(f'<text class="tick" x="{at}" y="{floor + 15}">{label}</text>' for at, label in xs)
    upright = "" if ys else "".join(f'<path class="grid" d="M{at} {TOP - 4}V{floor}"/>' for at, _ in xs)
    return f'{grid}{upright}{below}<path class="frame" d="M{left} {floor}H{width - RIGHT}"/>'


def _labels(width: int, height: int, x_label: str, y_label: str) -> str:
    middle = TOP + (height - TOP - BOTTOM) / 2
    return (
        f'<text class="axis" x="{LEFT + (width - LEFT - RIGHT) / 2}" y="{height - 6}">{escape(x_label)}</text>'
        f'<text class="axis" transform="translate(9 {middle}) rotate(-90)">{escape(y_label)}</text>'
    )


def _source(number: Number) -> str:
    """HTML attributes with a mark's number and its source; none for a published number."""
    return f'{number.attributes()} data-value="{number.value!r}"' if number.of else ""


def _rect(colour: str, size: str, number: Number, title: str) -> str:
    """A bar, of the place and size in the attributes `size`."""
    return f'<rect class="{colour}" {size} {_source(number)}><title>{escape(title)}</title></rect>'


def _name(name: str, top: Real) -> str:
    """A name above its bars, cut only where it is longer than the chart is wide."""
    shown = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
    return f'<text class="name" x="{SIDE}" y="{top + NAME / 2}" dy=".35em">{escape(shown)}</text>'


def _bar_chart(height: Real, marks: Sequence[tuple[Real, str]], label: str, shapes: Sequence[str]) -> str:
    """A chart of horizontal bars, with ticks at `marks`."""
    frame = _frame(WIDTH, height, [], marks, left=SIDE)
    below = f'<text class="axis" x="{(SIDE + WIDTH - RIGHT) / 2}" y="{height - 6}">{escape(label)}</text>'
    return _svg(WIDTH, height, label, [frame, below, *shapes])


def _svg(width: int, height: Real, label: str, parts: Sequence[str]) -> str:
    inside = "".join(parts)
    return f'<svg class="chart" viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(label)}">{inside}</svg>'
