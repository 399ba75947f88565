"""The figures of a report, drawn from the runs' numbers."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.controllers.adaptive import Adaptive
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.controllers.cali_ts import CaliTS
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.drafter import State
from jaxspec.decoding.round_records import RoundCounts, join
from jaxspec.engine.statistics import histogram as count_rounds
from jaxspec.evaluate.results import history
from jaxspec.evaluate.runner import REFERENCE
from jaxspec.report import svg
from jaxspec.report.runs import Run
from jaxspec.report.svg import Point, Series
from jaxspec.report.tables import (
    PARTS,
    PLAIN,
    WHOLE,
    Number,
    a_token,
    chains,
    drafts_by,
    escape,
    number,
    published,
    same_but,
)

MOST = 6  # methods in one figure: more colours cannot be distinguished
BARS = 30  # in one figure, over all categories
POINTS = 500  # of a line over rounds: a run may have tens of thousands, and each weighs 150 bytes
COUNTS = {"verified": "verified nodes", "levels": "levels"}  # field of `RoundCounts`, and the label of its axis


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure `of` a run or several: its body is HTML, mostly one SVG and a legend."""

    title: str
    of: str
    caption: str
    body: str
    wide: bool = False


Colours = Mapping[str, str]
"""The CSS class of each method."""


def all_figures(runs: Sequence[Run]) -> list[Figure]:
    """All figures for which these runs have numbers, the most informative first."""
    colours = colours_of(runs)
    makers = (by_category, by_position, time, lengths, reliability, control, histograms)
    of_each = [figure for run in runs for make in makers for figure in make(run, colours)]
    return [figure for figure in (*batches(runs, colours), *of_each) if figure.body]


def colours_of(runs: Sequence[Run]) -> Colours:
    """One colour for each method, the same in all figures of a page; the fastest methods differ most."""
    names = dict.fromkeys(name for run in runs for name in fastest(run, len(run.methods)))
    return {REFERENCE: "reference", **{name: f"s{i % svg.COLOURS}" for i, name in enumerate(names)}}


def fastest(run: Run, most: int = MOST) -> list[str]:
    """The fastest methods of a run, plain decoding left out."""
    names = [name for name in run.methods if name != REFERENCE]
    return sorted(names, key=lambda name: -run.value(name, "speedup"))[:most]


def by_category(run: Run, colours: Colours) -> Iterator[Figure]:
    """Speedup by category of the questions, of the fastest methods."""
    shown = list(run.value(REFERENCE, "categories"))
    names = fastest(run, min(MOST, max(BARS // len(shown), 1)))
    if not names:
        return
    speedup = lambda name, category: number(run, name, "categories", category, "speedup")
    groups = [(each or run.data, [(name, colours[name], speedup(name, each)) for name in names]) for each in shown]
    body = _key((name, colours[name]) for name in names) + svg.bars(
        groups, x_label="speedup over plain decoding", baseline=1.0
    )
    yield Figure("Speedup by category", run.title, f"Decoding alone, without prefill.{_few(run, len(names))}", body)


def by_position(run: Run, colours: Colours) -> Iterator[Figure]:
    """Acceptance by position n-α of chains, and EAGLE's."""
    longest = [max(names, key=lambda name: run.methods[name].builder.depth) for names in chains(run)]
    of = lambda name, at: number(run, name, "acceptance_by_position", at)
    series = [
        Series(name, [Point(at, of(name, at)) for at in range(len(rates))], colours[name])
        for name in longest[:MOST]
        if (rates := run.value(name, "acceptance_by_position"))
    ]
    if not series:
        return
    theirs = next(
        row for row in published()["EAGLE, Tables 2, 3 and 8"].rows if row["model"] == "LLaMA2-Chat 7B, T = 0"
    )
    points = [Point(at, Number(float(theirs[f"{at}-α"]), PLAIN, [])) for at in range(5)]
    series.append(Series("published: EAGLE, LLaMA2-Chat 7B, MT-bench", points, "published", "dashed"))
    yield _lines(
        "Acceptance by position",
        run.title,
        "Among drafts whose predecessors were accepted, the share that is accepted too (n-α).",
        series,
        x_label="position in the draft, from 0",
        y_label="accepted",
        y_range=(0, 1),
        x_ticks=range(max(len(each.points) for each in series)),
    )


def reliability(run: Run, colours: Colours) -> Iterator[Figure]:
    """Share accepted over confidence, as EDD's Figure 3b."""
    names = [name for name in fastest(run, len(run.methods)) if run.value(name, "expected_calibration_error")]

    def of(name, at, key):
        return number(run, name, "calibration", at, key)

    series = []
    for name in names[:MOST]:
        bins = [at for at, row in enumerate(run.value(name, "calibration")) if row["count"]]
        points = [Point(of(name, at, "confidence").value or 0, of(name, at, "accepted")) for at in bins]
        series.append(Series(name, points, colours[name]))
    yield _lines(
        "Reliability of confidences",
        run.title,
        "Drafts in ten bins of confidence; on the diagonal, confidence equals the acceptance rate (EDD, Fig. 3b).",
        series,
        x_label="confidence of the draft",
        y_label="share accepted",
        y_range=(0, 1),
        x_ticks=(0, 0.2, 0.4, 0.6, 0.8, 1),
        diagonal=True,
    )


def lengths(run: Run, colours: Colours) -> Iterator[Figure]:
    """Speedup over the length K of the draft, with the controllers that choose it (EESD, Figure 3)."""
    for names in (names for names in chains(run) if len(names) > 1):
        depths = [run.methods[name].builder.depth for name in names]
        kinds = (("measured", "speedup", "line"), ("modelled", "modelled_speedup", "dashed"))
        series = [
            Series(
                label,
                [Point(depth, number(run, name, key)) for depth, name in zip(depths, names, strict=True)],
                "chains",
                kind,
            )
            for label, key, kind in kinds
        ]
        head = drafts_by(run.methods[names[0]])
        stopped = [name for name, m in run.methods.items() if m.controller.stops and drafts_by(m) == head]
        for name in stopped[:MOST]:
            level = number(run, name, "speedup")
            series.append(Series(name, [Point(depths[0], level), Point(depths[-1], level)], colours[name]))
        yield _lines(
            f"Draft length, {names[0].partition('+')[0]}",
            run.title,
            "Chains of fixed length, and across all of them the controllers that choose one (EESD, Fig. 3).",
            series,
            x_label="tokens drafted per round, K",
            y_label="speedup",
            x_ticks=depths,
        )


def control(run: Run, colours: Colours) -> Iterator[Figure]:
    """The state of controllers after each round: Draft & Verify's Figure 5, and the means of EESD's posteriors."""
    learnt = [(name, curve) for name in run.methods if (curve := thresholds(run, name))]
    after = lambda name, at, value: Point(at, Number(value, PLAIN, ["replayed", run.number, name, at]))
    series = [
        Series(
            f"{name}: {curve.label}",
            [after(name, at, curve.values[at]) for at in _some(len(curve.values))],
            colours[name],
        )
        for name, curve in learnt
    ]
    yield _lines(
        "What controllers learn",
        run.title,
        "Over the rounds of all answers, one after the other: the threshold γ (Draft & Verify, Fig. 5), or the "
        "estimated chance that a draft is accepted. Without --keep-state each answer starts anew.",
        series,
        x_label="round",
        y_label="threshold or estimate",
        y_range=(0, 1),
        dots=False,
    )


def time(run: Run, colours: Colours) -> Iterator[Figure]:
    """Milliseconds per token by part. Runs whose parts were not timed are left out."""
    if run.value(REFERENCE, "breakdown") is None:
        return
    rows = [
        (name, [(part, f"part{i}", a_token(run, name, "breakdown", part)) for i, part in enumerate(PARTS)])
        for name in [REFERENCE, *fastest(run)]
    ]
    key = _key((part, f"part{i}") for i, part in enumerate(PARTS))
    body = key + svg.stacks(rows, x_label="milliseconds per token", unit=1e3)
    caption = (
        f"Predicted from the measured cost of each part of a round; other is what is left.{_few(run, len(rows) - 1)}"
    )
    yield Figure("Where the time goes", run.title, caption, body)


def batches(runs: Sequence[Run], colours: Colours) -> Iterator[Figure]:
    """Tokens per second by batch size."""

    def size(run):
        return run.settings["batch_size"]

    for alike in same_but(runs, "batch_size"):
        alike = sorted(alike, key=size)
        if len(alike) < 2:
            continue
        series = [
            Series(name, [Point(size(run), number(run, name, "tokens_per_second")) for run in alike], colours[name])
            for name in [REFERENCE, *fastest(alike[0], MOST - 1)]
        ]
        yield _lines(
            "Throughput",
            alike[0].where(batch=False),
            "Tokens per second of the whole batch.",
            series,
            x_label="questions decoded together",
            y_label="tokens per second",
            x_ticks=[size(run) for run in alike],
        )


def histograms(run: Run, colours: Colours) -> Iterator[Figure]:
    """Sizes and depths of the verified trees."""
    cards = []
    for name in run.methods:
        if name == REFERENCE:
            continue
        rounds = join([history(turn) for turn in run.turns(name)])
        charts = ""
        for field, label in COUNTS.items():
            counts = [
                (value, Number(count, WHOLE, ["histogram", run.number, name, field, value]))
                for value, count in count_rounds([getattr(rounds, field)]).items()
            ]
            charts += svg.histogram(counts, colours[name], x_label=label)
        cards.append(f'<div class="pair"><h4>{escape(name)}</h4>{charts}</div>')
    if cards:
        caption = "How many rounds verified a tree of so many nodes, the root left out, and of so many levels."
        body = f'<div class="multiples">{"".join(cards)}</div>'
        yield Figure("Tree sizes and depths", run.title, caption, body, wide=True)


def _lines(title: str, of: str, caption: str, series: Sequence[Series], **axes: Any) -> Figure:
    """A figure of lines; its body is empty where there are none."""
    key = svg.legend([(each.name, each.colour, each.kind) for each in series])
    return Figure(title, of, caption, key + svg.lines(series, **axes) if series else "")


def _key(entries: Iterable[tuple[str, str]]) -> str:
    """A legend of (name, colour)."""
    return svg.legend([(name, colour, "line") for name, colour in entries])


def _few(run: Run, shown: int) -> str:
    """A sentence where a figure does not show all methods."""
    drafting = len(run.methods) - 1
    return f" The {shown} fastest of {drafting} methods." if shown < drafting else ""


def _some(rounds: int) -> list[int]:
    """Numbers of the rounds that are drawn, about POINTS of them, the first and the last included."""
    return [*range(0, rounds - 1, max(rounds // POINTS, 1)), rounds - 1] if rounds else []


READ: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Adaptive: ("threshold γ", lambda state: state.gamma),
    BetaTS: ("mean of the posterior", lambda state: state.alpha / (state.alpha + state.beta)),
    CaliTS: ("estimate from samples", lambda state: state.estimate),
}
"""The number of a controller's state that is shown: its label, and how to read it."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """A number after each round of all answers, one after the other."""

    label: str
    values: Sequence[float]


def thresholds(run: Run, name: str) -> Curve | None:
    """The curve of a method's controller. None if it learns nothing, or kept its state in several rows at once."""
    controller = run.methods[name].controller
    kept = run.settings["keep_state"]
    if type(controller) not in READ or (kept and run.settings["batch_size"] > 1):
        return None
    label, read = READ[type(controller)]
    state: State = None
    values: list[float] = []
    for turn in run.turns(name):
        if state is None or not kept:
            state = controller.init(1)
        state, states = replay(controller, state, history(turn))
        values += np.asarray(read(states))[:, 0].tolist()
    return Curve(label, values)


def replay(controller: Controller, state: State, rounds: RoundCounts) -> tuple[State, State]:
    """The state, of one text, after all its rounds, and after each of them."""

    def learn(state: State, counts: RoundCounts) -> tuple[State, State]:
        new = controller.update(state, jax.tree.map(lambda count: count[None], counts))
        return new, new

    return jax.lax.scan(learn, state, jax.tree.map(jnp.asarray, rounds))
