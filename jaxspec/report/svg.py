"""Charts as SVG: axes, lines, bars, in the page's CSS colours, so they follow its light and dark themes."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from jaxspec.report.runs import Number, Real, escape

COLOURS = 24
"""Colours of methods that the page has: classes s0 to s23. Those of the parts of a round are part0 to part3."""
WIDTH = 400  # of a chart; on a phone it is shown at nearly this size, so its text can be read
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 38
SIDE = 2  # left of bars
BEHIND = 40  # right of bars, for their numbers
BAR, GAP = 13, 7
NAME = 15  # height of a line with a name above bars
LONGEST = 54  # characters of a name that fit in a line

Point = tuple[Real, Number]  # a place on the axis of x, and the number there
Part = tuple[str, str, Number]  # a part of a bar: its name, CSS class and number


@dataclasses.dataclass(frozen=True)
class Series:
    """A line with its CSS class, and its points in order of x."""

    name: str
    points: Sequence[Point]
    colour: str


def ticks(low: Real, high: Real) -> list[Real]:
    """About five round numbers from `low` to `high`."""
    rough = max(high - low, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def legend(colours: Mapping[str, str]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 22 8" aria-hidden="true"><path class="{colour} line" d="M1 4H21"/></svg>'
        f"{escape(name)}</li>"
        for name, colour in colours.items()
    )
    return f'<ul class="legend">{items}</ul>'


def lines(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[Real] = (),
    diagonal: bool = False,
    dots: bool = True,
) -> str:
    """A line chart of numbers from 0 to 1, on demand with the `diagonal`; every point carries its number, drawn or not.

    Without `x_ticks` the points decide.
    """
    height = 240
    shown = [place for each in series for place, _ in each.points]
    marks = x_ticks or ticks(min(shown, default=0), max(shown, default=1))
    left, right = min([*marks, *shown]), max([*marks, *shown])
    share = lambda value: (value - left) / (right - left) if right > left else 0.5
    x = lambda value: round(LEFT + (WIDTH - LEFT - RIGHT) * share(value), 1)
    y = lambda value: round(TOP + (height - TOP - BOTTOM) * (1 - value), 1)
    shapes = []
    if diagonal:
        shapes.append(f'<path class="diagonal" d="M{x(0)} {y(0)}L{x(1)} {y(1)}"/>')
    for each in series:
        points = [(place, number) for place, number in each.points if number.value is not None]
        if len(points) > 1:
            path = "L".join(f"{x(place)} {y(number.value)}" for place, number in points)
            shapes.append(f'<path class="{each.colour} line" d="M{path}"/>')
        mark = f'class="{each.colour}" r="3.2"' if dots else f'class="{each.colour} unseen" r="5"'
        shapes += [
            f'<circle {mark} cx="{x(place)}" cy="{y(number.value)}" {number.source()}>'
            f"<title>{escape(each.name)}, {round(place, 4):g}: {escape(number)}</title></circle>"
            for place, number in points
        ]
    return _chart(height, [(x(t), t) for t in marks], [(y(t), t) for t in ticks(0, 1)], x_label, y_label, shapes)


def bars(
    groups: Sequence[tuple[str, Sequence[Sequence[Part]]]],
    *,
    x_label: str,
    unit: Real = 1,
    baseline: Real | None = None,
) -> str:
    """Horizontal bars in groups, each under its name. A part below zero is not drawn, but keeps its number.

    The number of a bar of one part is written behind it. The axis shows the values times `unit`. The value `baseline`
    gets a line, such as 1 for plain decoding's speed.
    """
    positive = lambda number: max(number.value or 0, 0)
    wide = [sum(positive(number) for _, _, number in bar) for _, each in groups for bar in each]
    high = 1.03 * max([*wide, baseline or 1e-9])
    x = lambda value: round(SIDE + (WIDTH - SIDE - BEHIND) * value / high, 1)
    shapes, top = [], TOP
    for name, each in groups:
        shown = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
        shapes.append(f'<text class="name" x="{SIDE}" y="{top + NAME / 2}" dy=".35em">{escape(shown)}</text>')
        top += NAME
        for bar in each:
            end: Real = 0
            for part, colour, number in bar:
                begin, end = end, end + positive(number)
                shapes.append(
                    f'<rect class="{colour}" x="{x(begin)}" y="{top + 1}" width="{x(end) - x(begin):.1f}" '
                    f'height="{BAR - 2}" {number.source()}><title>{escape(name)}, {escape(part)}: {escape(number)}'
                    "</title></rect>"
                )
            if len(bar) == 1:
                place = f'x="{x(end) + 5}" y="{top + BAR / 2}" dy=".35em"'
                shapes.append(f'<text class="value" {place}>{escape(bar[0][2])}</text>')
            top += BAR
        top += GAP
    if baseline is not None:
        shapes.append(f'<path class="baseline" d="M{x(baseline)} {TOP - 4}V{top - GAP}"/>')
    return _chart(top - GAP + BOTTOM, [(x(t / unit), t) for t in ticks(0, high * unit)], [], x_label, "", shapes)


def _chart(
    height: Real,
    x_ticks: Sequence[tuple[Real, Real]],
    y_ticks: Sequence[tuple[Real, Real]],
    x_label: str,
    y_label: str,
    shapes: Sequence[str],
) -> str:
    """A chart with ticks (place, value) and, at the left, room for those of y if there are any."""
    left, floor = LEFT if y_ticks else SIDE, height - BOTTOM
    middle = TOP + (floor - TOP) / 2
    across = "".join(
        f'<path class="grid" d="M{left} {at}H{WIDTH - RIGHT}"/>'
        f'<text class="tick y" x="{left - 7}" y="{at}" dy=".35em">{value:g}</text>'
        for at, value in y_ticks
    )
    upright = "" if y_ticks else "".join(f'<path class="grid" d="M{at} {TOP - 4}V{floor}"/>' for at, _ in x_ticks)
    below = "".join(f'<text class="tick" x="{at}" y="{floor + 15}">{value:g}</text>' for at, value in x_ticks)
    beside = f'<text class="axis" transform="translate(9 {middle}) rotate(-90)">{escape(y_label)}</text>'
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(y_label or x_label)}">'
        f'{across}{upright}{below}<path class="frame" d="M{left} {floor}H{WIDTH - RIGHT}"/>'
        f'<text class="axis" x="{(left + WIDTH - RIGHT) / 2}" y="{height - 6}">{escape(x_label)}</text>'
        f"{beside if y_label else ''}{''.join(shapes)}</svg>"
    )
