"""`jaxspec sweep`: benchmarks one method at several values of a setting, and plots the results."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from rich.console import Console

from jaxspec.engine.statistics import ratio
from jaxspec.evaluate import bench
from jaxspec.host.atomic import check_ours, write_whole
from jaxspec.host.processes import is_first
from jaxspec.host.terminal import say
from jaxspec.methods.method import Value, parse_method, vary
from jaxspec.options.by_command import Bench, Comparison, Sweep


def run(settings: Sweep) -> None:
    if settings.out is not None and settings.out.suffix != ".json":
        raise ValueError(f"--out must name a .json file, not {settings.out}: the figure goes to the .svg beside it")
    if settings.out is not None:
        check_ours(settings.out.with_suffix(".svg"), settings.out)
    setting, equals, values = settings.over.partition("=")
    if not setting or not equals:
        raise ValueError(f"--over must be SETTING=VALUE,VALUE,..., such as length=1,2,3,4, not {settings.over!r}")
    variants = vary(parse_method(settings.method), setting, values.split(","))
    names = {value: str(method) for value, method in variants.items()}
    shared = {field.name: getattr(settings, field.name) for field in dataclasses.fields(Comparison)}
    found = bench.run_methods(Bench(**shared, methods=(*names.values(), *settings.against), json=settings.out))
    sweep = summarise(setting, names, settings.against, found["methods"])
    if settings.out is not None and is_first():
        write(settings.out, {**found, "sweep": sweep})
    bench.show(found, Console())
    Console(highlight=False, markup=False).print("\n" + conclude(sweep, found["methods"]))


def write(out: Path, found: dict[str, Any]) -> None:
    """Writes the results to `out` and the figure to the .svg beside it. Without matplotlib there is no figure."""
    figure = draw(found["sweep"], found["methods"])
    if figure is None:
        say("no figure: matplotlib is not installed (pip install matplotlib)")
    else:
        write_whole(out.with_suffix(".svg"), figure)
    write_whole(out, bench.to_json(found))


def summarise(
    setting: str, names: Mapping[Value, str], against: Sequence[str], methods: Mapping[str, Any]
) -> dict[str, Any]:
    """`sweep` of the JSON: the values, their methods, and the value with the highest modelled speedup."""
    return {
        "setting": setting,
        "values": list(names),
        "methods": list(names.values()),
        "against": list(dict.fromkeys(against)),
        "best": max(names, key=lambda value: methods[names[value]]["modelled_speedup"]),
    }


def conclude(sweep: Mapping[str, Any], methods: Mapping[str, Any]) -> str:
    """One sentence: the best value, and the other methods relative to it."""
    speedup = lambda name: methods[name]["modelled_speedup"]
    best = speedup(sweep["methods"][sweep["values"].index(sweep["best"])])
    others = [
        f"{name} has {speedup(name):.2f}x, {100 * (ratio(speedup(name), best) - 1):+.1f} %" for name in sweep["against"]
    ]
    winner = f"Best by modelled speedup: {sweep['setting']}={sweep['best']}, {best:.2f}x plain"
    return winner + ("; against it " + ", ".join(others) if others else "") + "."


def draw(sweep: Mapping[str, Any], methods: Mapping[str, Any]) -> str | None:
    """The figure of a sweep's JSON as the text of an SVG; None if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(10, 4), layout="constrained")
    speed, drafts = figure.subplots(1, 2)
    at, labels = axis(sweep["values"])
    column = lambda key: [methods[name][key] for name in sweep["methods"]]
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
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "jaxspec"}):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})  # the same numbers give the same bytes
    return text.getvalue()


def axis(values: Sequence[int | float | bool | str]) -> tuple[list[float], list[str]]:
    """Positions and labels on the axis: numbers at their value, names and ends of paths at equal distances."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], [f"{value:g}" for value in values]  # type: ignore[arg-type]
    return [float(i) for i in range(len(values))], [PurePath(str(value)).name for value in values]
