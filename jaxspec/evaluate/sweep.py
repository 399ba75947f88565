"""`jaxspec sweep`: benchmarks one method at several values of a setting, and plots the results."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxspec.engine.statistics import ratio
from jaxspec.evaluate import bench
from jaxspec.evaluate.sweep_figure import draw
from jaxspec.host.atomic import write_whole
from jaxspec.host.processes import is_first
from jaxspec.host.terminal import say
from jaxspec.methods.method import parse_method
from jaxspec.methods.variants import Variant, vary
from jaxspec.options.main import Bench, Comparison, Sweep


def run(settings: Sweep) -> None:
    """Runs the sweep, writes its results and its figure, and prints bench's table and the best value."""
    if settings.out is not None and settings.out.suffix != ".json":
        raise ValueError(f"--out must name a .json file, not {settings.out}: the figure goes to the .svg beside it")
    setting, values = read_over(settings.over)
    variants = vary(parse_method(settings.method), setting, values)
    shared = {field.name: getattr(settings, field.name) for field in dataclasses.fields(Comparison)}
    methods = (*(str(variant.method) for variant in variants), *settings.against)
    found = bench.compare(Bench(**shared, methods=methods, json=settings.out))
    sweep = summarise(setting, variants, settings.against, found["methods"])
    if settings.out is not None and is_first():
        write(settings.out, {**found, "sweep": sweep})
    bench.show(found, Console())
    Console(highlight=False, markup=False).print("\n" + conclude(sweep, found["methods"]))


def write(out: Path, found: dict[str, Any]) -> None:
    """Writes the results to `out` and the figure to the .svg beside it. Without matplotlib there is no figure."""
    figure = draw(found["sweep"], found["methods"])
    if figure is None:
        say("no figure: matplotlib is not installed (pip install 'jax-specdec[report]')")
    else:
        write_whole(out.with_suffix(".svg"), figure)
    write_whole(out, bench.to_json(found))


def read_over(text: str) -> tuple[str, list[str]]:
    """Reads `length=1,2,3`: the setting and its values, as text."""
    setting, equals, values = text.partition("=")
    if not setting or not equals:
        raise ValueError(f"--over must be SETTING=VALUE,VALUE,..., such as length=1,2,3,4, not {text!r}")
    return setting, values.split(",")


def summarise(
    setting: str, variants: Sequence[Variant], against: Sequence[str], methods: Mapping[str, Any]
) -> dict[str, Any]:
    """`sweep` of the JSON: the values, their methods, and the value with the highest modelled speedup."""
    best = max(variants, key=lambda variant: methods[str(variant.method)]["modelled_speedup"])
    return {
        "setting": setting,
        "values": [variant.value for variant in variants],
        "methods": [str(variant.method) for variant in variants],
        "against": list(dict.fromkeys(against)),
        "best": best.value,
    }


def conclude(sweep: Mapping[str, Any], methods: Mapping[str, Any]) -> str:
    """One sentence: the best value, and the other methods relative to it."""

    def speedup(name):
        return methods[name]["modelled_speedup"]

    best = speedup(sweep["methods"][sweep["values"].index(sweep["best"])])
    others = [
        f"{name} has {speedup(name):.2f}x, {100 * (ratio(speedup(name), best) - 1):+.1f} %" for name in sweep["against"]
    ]
    winner = f"Best by modelled speedup: {sweep['setting']}={sweep['best']}, {best:.2f}x plain"
    return winner + ("; against it " + ", ".join(others) if others else "") + "."
