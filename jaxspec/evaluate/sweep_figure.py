"""The figure of a sweep: speedup, and the quality of the drafts, over the values of a setting."""

import io
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any


def draw(sweep: Mapping[str, Any], methods: Mapping[str, Any]) -> str | None:
    """The figure as the text of an SVG; None if matplotlib is not installed.

    Args:
        sweep, methods: the entries of the sweep's JSON.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(10, 4), layout="constrained")
    speed, drafts = figure.subplots(1, 2)
    at, labels = axis(sweep["values"])

    def column(key):
        return [methods[name][key] for name in sweep["methods"]]

    speed.plot(at, column("modelled_speedup"), "o-", markersize=4, label="modelled")
    speed.plot(at, column("speedup"), "o:", markersize=4, label="measured")
    for i, name in enumerate(sweep["against"]):
        speed.axhline(methods[name]["modelled_speedup"], color=f"C{i + 2}", linewidth=1, label=f"{name}, modelled")
    speed.set(ylabel="speedup over plain decoding", title="Speedup")
    (tau,) = drafts.plot(at, column("tau"), "o-", markersize=4, label="tau")
    share = drafts.twinx()
    (mean,) = share.plot(at, column("harmonic_mean"), "s--", color="C1", markersize=4, label="harmonic mean")
    drafts.set(ylabel="tokens a round", title="Drafts")
    share.set(ylabel="HM of v_d and r_d", ylim=(0, 1))
    for axes in (speed, drafts):
        axes.set(xlabel=sweep["setting"])
        axes.set_xticks(at, labels)
    speed.legend(frameon=False, fontsize="small")
    drafts.legend(handles=[tau, mean], frameon=False, fontsize="small")
    return to_svg(figure)


def to_svg(figure: Any) -> str:
    """A Matplotlib figure as the text of an SVG."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "jaxspec"}):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})  # the same numbers give the same bytes
    return text.getvalue()


def axis(values: Sequence[int | float | bool | str]) -> tuple[list[float], list[str]]:
    """Positions and labels on the axis: numbers at their value, names at equal distances.

    Paths of heads are shown by their last component.
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], [f"{value:g}" for value in values]  # type: ignore[arg-type]
    return [float(i) for i in range(len(values))], [PurePath(str(value)).name for value in values]
