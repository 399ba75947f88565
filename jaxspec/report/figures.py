"""The figures of a report, drawn from the runs' numbers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.controllers.adaptive import Adaptive
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.controllers.cali_ts import CaliTS
from jaxspec.decoding.drafter import State
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.evaluate.runner import REFERENCE
from jaxspec.report import svg
from jaxspec.report.papers import chains
from jaxspec.report.runs import PARTS, PLAIN, Number, Run, a_token, number
from jaxspec.report.svg import Series

MOST = 6  # methods in one figure: more colours cannot be distinguished
BARS = 30  # in one figure, over all categories
POINTS = 500  # of a line over rounds: a run may have tens of thousands, and each weighs 150 bytes
Colours = Mapping[str, str]  # CSS classes of methods


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure `of` a run: its body is a legend and an SVG."""

    title: str
    of: str
    caption: str
    body: str


def all_figures(runs: Sequence[Run]) -> list[Figure]:
    """All figures for which these runs have numbers, the most informative first."""
    colours = colours_of(runs)
    makers = (by_category, by_position, functools.partial(by_position, unconditional=True), time, reliability, control)
    return [figure for run in runs for make in makers if (figure := make(run, colours)) is not None]


def colours_of(runs: Sequence[Run]) -> Colours:
    """One colour for each method, the same in all figures of a page; the fastest methods differ most."""
    names = dict.fromkeys(name for run in runs for name in fastest(run, len(run.methods)))
    return {name: f"s{i % svg.COLOURS}" for i, name in enumerate(names)}


def fastest(run: Run, most: int = MOST) -> list[str]:
    """The fastest methods of a run, plain decoding left out."""
    names = [name for name in run.methods if name != REFERENCE]
    return sorted(names, key=lambda name: -run.value(name, "speedup"))[:most]


def by_category(run: Run, colours: Colours) -> Figure | None:
    shown = list(run.value(REFERENCE, "categories"))
    names = fastest(run, min(MOST, max(BARS // len(shown), 1)))
    if not names:
        return None
    speedup = lambda name, category: number(run, name, "categories", category, "speedup")
    bars = lambda category: [[(name, colours[name], speedup(name, category))] for name in names]
    body = svg.bars(
        [(each or run.data, bars(each)) for each in shown], x_label="speedup over plain decoding", baseline=1
    )
    caption = f"Decoding alone, without prefill.{_omission(run, len(names))}"
    return Figure("Speedup by category", run.title, caption, svg.legend({name: colours[name] for name in names}) + body)


def by_position(run: Run, colours: Colours, unconditional: bool = False) -> Figure | None:
    """Acceptance by position of chains: n-α (EAGLE, Table 2), or `unconditional` as vLLM counts it."""
    title, key = "Acceptance by position", "acceptance_by_position"
    caption = "Among drafts whose predecessors were accepted, the share that is accepted too (n-α)."
    if unconditional:
        title, key = f"{title}, over all rounds", f"unconditional_{key}"
        caption = "Of all rounds that drafted, the share that accepted a draft at this position, as vLLM counts."
    longest = [max(names, key=lambda name: run.methods[name].builder.depth) for names in chains(run)]
    of = lambda name, at: number(run, name, key, at)
    series = [
        Series(name, [(at, of(name, at)) for at in range(len(rates))], colours[name])
        for name in longest[:MOST]
        if (rates := run.value(name, key))
    ]
    axes = {"x_label": "position in the draft, from 0", "y_label": "accepted"}
    ticks = range(max((len(each.points) for each in series), default=0))
    return _lines(run, title, caption, series, **axes, x_ticks=ticks)


def reliability(run: Run, colours: Colours) -> Figure | None:
    """Share accepted over confidence, as EDD's Figure 3b."""
    of = lambda name, at, key: number(run, name, "calibration", at, key)
    names = [name for name in fastest(run, len(run.methods)) if run.value(name, "expected_calibration_error")]
    series = []
    for name in names[:MOST]:
        bins = [at for at, row in enumerate(run.value(name, "calibration")) if row["count"]]
        points = [(of(name, at, "confidence").value or 0, of(name, at, "accepted")) for at in bins]
        series.append(Series(name, points, colours[name]))
    return _lines(
        run,
        "Reliability of confidences",
        "Drafts in ten bins of confidence; on the diagonal, confidence equals the acceptance rate (EDD, Fig. 3b).",
        series,
        x_label="confidence of the draft",
        y_label="share accepted",
        x_ticks=(0, 0.2, 0.4, 0.6, 0.8, 1),
        diagonal=True,
    )


def control(run: Run, colours: Colours) -> Figure | None:
    """The state of controllers after each round: Draft & Verify's Figure 5, and the means of EESD's posteriors."""
    series = []
    for name in run.methods:
        if curve := thresholds(run, name):
            source = ["replayed", run.number, name]
            points = [(at, Number(curve[at], PLAIN, [*source, at])) for at in _rounds_drawn(len(curve))]
            label, _ = READ[type(run.methods[name].controller)]
            series.append(Series(f"{name}: {label}", points, colours[name]))
    return _lines(
        run,
        "What controllers learn",
        "Over the rounds of all answers, one after the other: the threshold γ (Draft & Verify, Fig. 5), or the "
        "estimated chance that a draft is accepted. Without --keep-state each answer starts anew.",
        series,
        x_label="round",
        y_label="threshold or estimate",
        dots=False,
    )


def time(run: Run, colours: Colours) -> Figure | None:
    """Milliseconds per token by part. Runs whose parts were not timed are left out."""
    if run.value(REFERENCE, "breakdown") is None:
        return None
    names, styles = fastest(run), {part: f"part{i}" for i, part in enumerate(PARTS)}
    bar = lambda name: [(part, style, a_token(run, name, "breakdown", part)) for part, style in styles.items()]
    body = svg.bars([(name, [bar(name)]) for name in [REFERENCE, *names]], x_label="milliseconds per token", unit=1e3)
    few = _omission(run, len(names))
    caption = f"Predicted from the measured cost of each part of a round; other is what is left.{few}"
    return Figure("Where the time goes", run.title, caption, svg.legend(styles) + body)


def _lines(run: Run, title: str, caption: str, series: Sequence[Series], **axes: Any) -> Figure | None:
    """A figure of lines; None without any."""
    key = svg.legend({each.name: each.colour for each in series})
    return Figure(title, run.title, caption, key + svg.lines(series, **axes)) if series else None


def _omission(run: Run, shown: int) -> str:
    """A sentence where a figure does not show all methods."""
    drafting = len(run.methods) - 1
    return f" The {f'{shown} ' if shown > 1 else ''}fastest of {drafting} methods." if shown < drafting else ""


def _rounds_drawn(rounds: int) -> list[int]:
    """Numbers of the rounds that are drawn, about POINTS of them, the first and the last included."""
    return [*range(0, rounds - 1, max(rounds // POINTS, 1)), rounds - 1] if rounds else []


READ: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Adaptive: ("threshold γ", lambda state: state.gamma),
    BetaTS: ("mean of the posterior", lambda state: state.alpha / (state.alpha + state.beta)),
    CaliTS: ("estimate from samples", lambda state: state.estimate),
}
"""The number of a controller's state that is shown: its label, and how to read it."""


def thresholds(run: Run, name: str) -> list[float]:
    """The number of a method's controller after each round of all answers, one after the other.

    Empty if it learns nothing, or kept its state in several rows at once.
    """
    controller, kept = run.methods[name].controller, run.settings["keep_state"]
    if type(controller) not in READ or (kept and run.settings["batch_size"] > 1):
        return []
    _, read = READ[type(controller)]

    def learn(state: State, counts: RoundCounts) -> tuple[State, State]:
        new = controller.update(state, jax.tree.map(lambda count: count[None], counts))
        return new, new

    state: State = None
    values: list[float] = []
    for turn in run.turns(name):
        if state is None or not kept:
            state = controller.init(1)
        state, states = jax.lax.scan(learn, state, jax.tree.map(jnp.asarray, turn.history))
        values += np.asarray(read(states))[:, 0].tolist()
    return values
