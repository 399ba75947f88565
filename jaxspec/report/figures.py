"""The figures of a page, each from the runs' numbers."""

import dataclasses
from collections.abc import Iterator, Sequence

from jaxspec.decoding.round_counts import join
from jaxspec.engine.statistics import histogram as count_rounds
from jaxspec.evaluate.results import history
from jaxspec.evaluate.runner import REFERENCE
from jaxspec.report import svg
from jaxspec.report.cells import MILLI, PLAIN, WHOLE, Number, derived, escape, number
from jaxspec.report.published import EAGLE_2
from jaxspec.report.replay import thresholds
from jaxspec.report.runs import Run
from jaxspec.report.svg import Point, Series
from jaxspec.report.tables import chain_lengths, fixed_chain, pick, same_but

MOST = 6  # methods in one figure: more cannot be told apart
BARS = 48  # in one figure, over all categories
POINTS = 500  # of a line over rounds: a run may have tens of thousands, and each weighs 150 bytes
COUNTS = {"verified": "verified nodes", "levels": "levels"}  # field of `RoundCounts`, and the label of its axis
PARTS = ("drafting", "verification", "control", "other")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure `of` a run or several: its body is HTML, mostly one SVG and a legend."""

    title: str
    of: str
    caption: str
    body: str
    wide: bool = False


def all_figures(runs: Sequence[Run]) -> list[Figure]:
    """All figures that these runs have the numbers for."""
    makers = (by_category, by_position, reliability, lengths, control, time, batches, histograms)
    return [figure for make in makers for figure in make(runs) if figure.body]


def fastest(run: Run, most: int = MOST) -> list[str]:
    """The fastest methods of a run, plain decoding left out."""
    names = [name for name in run.methods if name != REFERENCE]
    return sorted(names, key=lambda name: -run.value(name, "speedup"))[:most]


def by_category(runs: Sequence[Run]) -> Iterator[Figure]:
    """Speedup by category of the questions, of the fastest methods of each run."""
    for run in runs:
        shown = list(run.value(REFERENCE, "categories"))
        names = fastest(run, min(MOST, max(BARS // len(shown), 1)))
        if not names:
            continue
        groups = [
            (
                category or run.data,
                [(name, i, number(run, name, "categories", category, "speedup")) for i, name in enumerate(names)],
            )
            for category in shown
        ]
        body = svg.bars(groups, x_label="speedup over plain decoding", baseline=1.0)
        key = svg.legend([(name, i, "line") for i, name in enumerate(names)])
        yield Figure("Speedup by category", run.title, _few(run, names), key + body)


def by_position(runs: Sequence[Run]) -> Iterator[Figure]:
    """Acceptance by position n-α of chains, and EAGLE's."""
    for run in runs:
        names = [name for _, name in pick([run], fixed_chain)]
        longest: dict[tuple, str] = {}
        for name in names:
            key = (run.methods[name].drafter, run.methods[name].head)
            if key not in longest or run.methods[name].builder.depth > run.methods[longest[key]].builder.depth:
                longest[key] = name
        series = [
            Series(
                name,
                [Point(at, number(run, name, "acceptance_by_position", at)) for at in range(len(rates))],
                i % svg.COLOURS,
            )
            for i, name in enumerate(list(longest.values())[:MOST])
            if (rates := run.value(name, "acceptance_by_position"))
        ]
        if not series:
            continue
        theirs = next(row for row in EAGLE_2 if row[0] == "LLaMA2-Chat 7B, T = 0")
        points = [Point(at, Number(float(text), PLAIN, [])) for at, text in enumerate(theirs[3:])]
        series.append(Series("published: EAGLE, LLaMA2-Chat 7B, MT-bench", points, svg.COLOURS, "dashed"))
        most = max(len(each.points) for each in series)
        body = svg.lines(
            series, x_label="position in the draft, from 0", y_label="accepted", y_range=(0, 1), x_ticks=range(most)
        )
        caption = "Among drafts whose predecessors were accepted, the share that is accepted too (n-α)."
        yield Figure("Acceptance by position", run.title, caption, _key(series) + body)


def reliability(runs: Sequence[Run]) -> Iterator[Figure]:
    """Share accepted over confidence, as EDD's Figure 3b."""
    for run in runs:
        names = [name for name in fastest(run, len(run.methods)) if run.value(name, "expected_calibration_error")]
        series = []
        for i, name in enumerate(names[:MOST]):
            bins = [at for at, row in enumerate(run.value(name, "calibration")) if row["count"]]
            of = lambda at, key, run=run, name=name: number(run, name, "calibration", at, key)
            points = [Point(of(at, "confidence").value or 0, of(at, "accepted")) for at in bins]
            series.append(Series(name, points, i))
        if series:
            body = svg.lines(
                series,
                x_label="confidence of the draft",
                y_label="share accepted",
                y_range=(0, 1),
                x_ticks=(0, 0.2, 0.4, 0.6, 0.8, 1),
                diagonal=True,
            )
            caption = (
                "Drafts in ten bins of confidence; on the diagonal, confidence can be taken at its word (EDD, Fig. 3b)."
            )
            yield Figure("Reliability of confidences", run.title, caption, _key(series) + body)


def lengths(runs: Sequence[Run]) -> Iterator[Figure]:
    """Speedup over the length K of the draft, with the controllers that choose it (EESD, Figure 3)."""
    for alike in chain_lengths(runs):
        run, first = alike[0]
        method = run.methods[first]
        same = lambda m, of=method: (m.drafter, m.head) == (of.drafter, of.head) and m.controller.stops
        depth = lambda name, run=run: run.methods[name].builder.depth
        series = [
            Series(label, [Point(depth(name), number(run, name, key)) for _, name in alike], i, kind)
            for i, (label, key, kind) in enumerate(
                (("measured", "speedup", "line"), ("modelled", "modelled_speedup", "dashed"))
            )
        ]
        ends = (depth(alike[0][1]), depth(alike[-1][1]))
        for i, (_, name) in enumerate(pick([run], same)[: svg.COLOURS - 2], 2):
            level = number(run, name, "speedup")
            series.append(Series(name, [Point(ends[0], level), Point(ends[1], level)], i))
        body = svg.lines(
            series,
            x_label="tokens drafted a round, K",
            y_label="speedup",
            x_ticks=[depth(name) for _, name in alike],
        )
        drafter = first.partition("+")[0]
        caption = "Chains of fixed length, and across all of them the controllers that choose one (EESD, Fig. 3)."
        yield Figure(f"Draft length, {drafter}", run.title, caption, _key(series) + body)


def control(runs: Sequence[Run]) -> Iterator[Figure]:
    """What controllers had learnt after each round: Draft & Verify's Figure 5, and the means of EESD's posteriors."""
    for run in runs:
        found = {name: thresholds(run, name) for name in run.methods if run.methods[name].controller.stops}
        series = [
            Series(
                f"{name}: {learnt.label}",
                [
                    Point(at, Number(learnt.values[at], PLAIN, ["replayed", run.number, name, at]))
                    for at in _some(len(learnt.values))
                ],
                i % svg.COLOURS,
            )
            for i, (name, learnt) in enumerate((name, learnt) for name, learnt in found.items() if learnt is not None)
        ]
        if series:
            body = svg.lines(series, x_label="round", y_label="threshold or estimate", y_range=(0, 1), dots=False)
            caption = (
                "Over the rounds of all answers, one after the other: the threshold γ (Draft & Verify, Fig. 5), or the "
                "estimated chance that a draft is accepted. Without --keep-state each answer starts anew."
            )
            yield Figure("What controllers learn", run.title, caption, _key(series) + body)


def time(runs: Sequence[Run]) -> Iterator[Figure]:
    """Milliseconds a token by part."""
    for run in runs:
        rows = [
            (
                name,
                [
                    (
                        part,
                        i,
                        derived("ratio", number(run, name, "breakdown", part), number(run, name, "tokens"), MILLI),
                    )
                    for i, part in enumerate(PARTS)
                ],
            )
            for name in [REFERENCE, *fastest(run, 2 * MOST)]
        ]
        body = svg.stacks(rows, x_label="milliseconds a token", unit=1e3)
        key = svg.legend([(part, i, "line") for i, part in enumerate(PARTS)])
        caption = "Pieces that were timed alone, times how often the run had them; other is what is left."
        yield Figure("Where the time goes", run.title, caption, key + body)


def batches(runs: Sequence[Run]) -> Iterator[Figure]:
    """Tokens a second by batch size."""
    for alike in same_but(runs, "batch_size"):
        alike = sorted(alike, key=lambda run: run.settings["batch_size"])
        if len(alike) < 2:
            continue
        names = [REFERENCE, *fastest(alike[0], MOST - 1)]
        size = lambda run: run.settings["batch_size"]
        series = [
            Series(name, [Point(size(run), number(run, name, "tokens_per_second")) for run in alike], i)
            for i, name in enumerate(names)
        ]
        body = svg.lines(
            series,
            x_label="questions decoded together",
            y_label="tokens a second",
            x_ticks=[size(run) for run in alike],
        )
        yield Figure(
            "Throughput", alike[0].where(batch=False), "Tokens a second of the whole batch.", _key(series) + body
        )


def histograms(runs: Sequence[Run]) -> Iterator[Figure]:
    """Sizes and depths of the verified trees."""
    for run in runs:
        cards = []
        for i, name in enumerate(run.methods):
            if name == REFERENCE:
                continue
            rounds = join([history(turn) for turn in run.turns(name)])
            charts = "".join(
                svg.histogram(
                    [
                        (value, Number(count, WHOLE, ["histogram", run.number, name, field, value]))
                        for value, count in count_rounds([getattr(rounds, field)]).items()
                    ],
                    i % svg.COLOURS,
                    x_label=label,
                )
                for field, label in COUNTS.items()
            )
            cards.append(f'<div class="pair"><h4>{escape(name)}</h4>{charts}</div>')
        if cards:
            caption = "How many rounds verified a tree of so many nodes, the root left out, and of so many levels."
            body = f'<div class="multiples">{"".join(cards)}</div>'
            yield Figure("Tree sizes and depths", run.title, caption, body, wide=True)


def _key(series: Sequence[Series]) -> str:
    return svg.legend([(each.name, each.colour, each.kind) for each in series])


def _some(rounds: int) -> list[int]:
    """Numbers of the rounds that are drawn, about POINTS of them, the first and the last included."""
    return [*range(0, rounds - 1, max(rounds // POINTS, 1)), rounds - 1] if rounds else []


def _few(run: Run, names: Sequence[str]) -> str:
    left = len(run.methods) - 1 - len(names)
    return "Decoding alone, prefill left out." + (
        f" The {len(names)} fastest of {left + len(names)} methods." if left else ""
    )
