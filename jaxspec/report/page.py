"""The HTML page: its sections, with style and script inside."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxspec.evaluate.runlog import Turn
from jaxspec.evaluate.runner import REFERENCE
from jaxspec.evaluate.simulate import LABEL
from jaxspec.host.atomic import check_folder, write_whole
from jaxspec.options.main import Report
from jaxspec.report import figures, papers
from jaxspec.report.figures import Figure, fastest
from jaxspec.report.runs import Run, read
from jaxspec.report.tables import WHOLE, Cell, Number, Table, cell, escape, number

FOLDER = Path(__file__).parent
HARDWARE = "published, other hardware"
SHOWN = 4  # figures that are not folded away


def run(settings: Report) -> None:
    """`jaxspec report`."""
    write(settings.runs, settings.out, settings.generations)


def write(runs: Iterable[Path], out: Path, questions: int = 3) -> None:
    """Writes the page of some runs.

    Args:
        runs: files that `--json` named.
        questions: of each run, whose answers are shown.

    Raises:
        ValueError: a run that is not there or not finished, or no folder to write into.
    """
    check_folder(out)
    write_whole(out, render(read(list(runs)), questions))
    print(f"wrote {out}")


def render(runs: Sequence[Run], questions: int = 3) -> str:
    """The page as text."""
    sections = [
        ("overview", "Overview", _run(runs[0]) + "".join(_folded(run.title, _run(run)) for run in runs[1:]) + COLUMNS),
        ("generations", "Generations", GENERATIONS.format(_how_many(runs, questions))),
        ("figures", "Figures", _figures(figures.all_figures(runs))),
        ("papers", "The papers' tables", "".join(_paper(name, tables) for name, tables in papers.by_paper(runs))),
        ("runs", "How it was measured", "".join(map(_settings, runs))),
    ]
    links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title, _ in sections)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(title)}</h2>{content}</section>' for anchor, title, content in sections
    )
    data = json.dumps(generations_to_json(runs, questions), separators=(",", ":")).replace("<", "\\u003c")
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    title = " · ".join(dict.fromkeys(run.target for run in runs))
    warning = f'<p class="warning">{escape(WARNING)}</p>' if any(run.simulated for run in runs) else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}: jaxspec report</title><style>{style}</style></head><body>"
        f'<header><p class="brand">jaxspec report</p><h1>{escape(title)}</h1>'
        f'<p class="device">{escape(_devices(runs))}</p>{warning}</header><nav>{links}</nav><main>{body}</main>'
        f'<script type="application/json" id="generations-data">{data}</script><script>{script}</script>'
        "</body></html>\n"
    )


WARNING = (
    f"{LABEL.capitalize()}: the weights are random, and drafts are accepted at random, at the given rates. The times "
    "were measured on this device. The text is meaningless."
)
COLUMNS = (
    "<details><summary>What the columns mean</summary>"
    '<p class="note">Times are medians over the repeats; ± is their standard deviation. Speedup is that of decoding, '
    "without prefill. In brackets: 95 % bootstrap intervals over the questions; questions of one batch are "
    "drawn together. Of the fastest: tokens per second, divided by those of the fastest method. p: of Wilcoxon's "
    "signed-rank test that compares the two over the questions. Modelled: the speedup predicted from this run's counts "
    "and the measured cost of each part of a round. τ: tokens per round. τ uncut: the same, with the last round of a "
    "text counted in full, as EAGLE does. τ drafted: accepted drafts per round. α: accepted drafts divided by drafted "
    "levels. HM: harmonic mean of EESD's v_d and r_d. Nodes and depth: verified nodes and drafted levels per round. "
    "Unexplained: texts that differ from plain decoding's and that rounding does not explain.</p></details>"
)
GENERATIONS = (
    '<p class="says">Each token is coloured by who proposed it. Click on a round to see its draft tree; the arrow keys '
    "move to the next round. {}</p>"
    '<ul class="key"><li><span class="token accepted">drafted and accepted</span></li>'
    '<li><span class="token bonus">bonus, from the target</span></li>'
    '<li><span class="token rejected">drafted and rejected</span></li>'
    '<li><span class="token prefill">from prefill</span></li></ul>'
    '<div id="answers"><p>This part is drawn by the page\'s script.</p></div>'
)


def _run(run: Run) -> str:
    """Tiles with the most telling numbers, and the table of all methods."""
    tiles = ""
    if names := fastest(run, 1):
        best = names[0]

        def speed(name):
            return number(run, name, "tokens_per_second", form=WHOLE)

        tiles = (
            f'<p class="best">Fastest: <strong>{escape(best)}</strong></p><div class="tiles">'
            + _tile("speedup", number(run, best, "speedup"), "over plain decoding")
            + _tile("tokens per round, τ", number(run, best, "tau"), "plain decoding has 1")
            + _tile("tokens per second", speed(best), f"{REFERENCE}: {speed(REFERENCE).html()}")
            + f"{_lossless(run)}</div>"
        )
    badge = f'<span class="badge">{LABEL}</span>' if run.simulated else ""
    return f"<h3>{escape(run.title)} {badge}</h3>{tiles}{_grid(papers.overview(run))}"


def _folded(title: str, content: str) -> str:
    """Content that a click on its title shows."""
    return f'<details class="card"><summary>{escape(title)}</summary>{content}</details>'


def _how_many(runs: Sequence[Run], questions: int) -> str:
    """A sentence for each run of whose questions only some are shown."""
    counts = [(run, len({answer.question for answer in run.answers})) for run in runs]
    return " ".join(
        f"{escape(run.title)}: {questions} of {count} questions; <code>--generations {count}</code> shows all."
        for run, count in counts
        if questions < count
    )


def _figures(found: Sequence[Figure]) -> str:
    """The first figures, and the others folded."""
    first, others = ("".join(map(_figure, part)) for part in (found[:SHOWN], found[SHOWN:]))
    count = len(found) - SHOWN
    title = f"{count} more figure{'s' if count > 1 else ''}"
    more = _folded(title, f'<div class="figures">{others}</div>') if others else ""
    return f'<div class="figures">{first}</div>{more}'


def _paper(name: str, tables: Sequence[Table]) -> str:
    """A paper's tables, folded: those with rows of these runs first."""
    ours, theirs = ([table for table in tables if bool(table.ours) is wanted] for wanted in (True, False))
    says = f"{name}: tables with your numbers: {len(ours)} of {len(tables)}"
    return _folded(says, "".join(map(_table, [*ours, *theirs])))


def _tile(label: str, value: Number, below: str) -> str:
    """A number with its label, and HTML below."""
    return (
        f'<div class="tile"><p class="label">{escape(label)}</p><p class="big">{value.html()}</p>'
        f'<p class="below">{below}</p></div>'
    )


def _lossless(run: Run) -> str:
    """Number of texts of all methods that differ from plain decoding's; a reason if no texts were compared."""
    found = [run.value(name, "unexplained_divergences") for name in run.methods]
    if any(value is None for value in found):
        why = "nothing was compared" if run.simulated else "sampled texts differ by design"
        return _tile("texts changed", Number(None, WHOLE, []), why)
    total = Number(sum(found), WHOLE, ["unexplained", run.number])
    return _tile("texts changed, all methods", total, "beyond what rounding explains")


def _figure(figure: Figure) -> str:
    wide = " wide" if figure.wide else ""
    return (
        f'<figure class="card{wide}"><figcaption><h3>{escape(figure.title)} '
        f'<span class="source">{escape(figure.of)}</span></h3>'
        f'<p class="says">{escape(figure.caption)}</p></figcaption>{figure.body}</figure>'
    )


def _table(table: Table) -> str:
    missing = ""
    if not table.ours:
        missing = (
            f'<p class="missing">Not measured in these runs. To measure it: <code>{escape(table.missing)}</code>.</p>'
        )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="card table"><h3>{escape(table.title)} <span class="source">{escape(table.source)}</span></h3>'
        f"{missing}{_grid(table)}{note}</div>"
    )


def _grid(table: Table) -> str:
    """The table element: ours, then what was published, under a row that says so."""
    groups = "".join(f'<th colspan="{columns}">{escape(title)}</th>' for title, columns in table.groups)
    titles = "".join(f"<th>{escape(title)}</th>" for title in table.columns)
    head = (f'<tr class="groups">{groups}</tr>' if groups else "") + f"<tr>{titles}</tr>"
    names = 2 if table.source else 1
    ours = "".join(_line(cells, names) for cells in table.ours)
    divider = f'<tr class="divider"><th colspan="{len(table.columns)}">{escape(table.source)}: {HARDWARE}</th></tr>'
    theirs = "".join(_line(cells, names) for cells in table.published)
    below = f'<tbody class="published">{divider}{theirs}</tbody>' if theirs else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>'
        f'<thead>{head}</thead><tbody class="ours">{ours}</tbody>{below}</table></div>'
    )


def _line(cells: Sequence[Cell], names: int) -> str:
    """A row, whose first cells name it."""
    named = "".join(f'<th scope="row">{cell(content)}</th>' for content in cells[:names])
    return f"<tr>{named}{''.join(f'<td>{cell(content)}</td>' for content in cells[names:])}</tr>"


def _settings(run: Run) -> str:
    """Device, versions and settings of a run."""
    values = {
        "device": run.found["device"],
        "dtype": run.found["dtype"],
        "noise of logits": "not measured" if run.found["noise"] is None else f"{run.found['noise']:.3g}",
        **run.found["versions"],
        **run.settings,
    }
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(_value(value))}</dd>" for name, value in values.items())
    return f'<details class="card"><summary>{escape(run.title)}</summary><dl>{rows}</dl></details>'


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _devices(runs: Sequence[Run]) -> str:
    return "; ".join(dict.fromkeys(f"{run.found['device']}, {run.found['dtype']}" for run in runs))


def generations_to_json(runs: Sequence[Run], questions: int) -> list[dict[str, Any]]:
    """An entry a run: its title, and the answers to its first questions by every method."""
    numbers = lambda run: sorted({answer.question for answer in run.answers})[:questions]
    return [{"title": run.title, "questions": [_question(run, number) for number in numbers(run)]} for run in runs]


def _question(run: Run, number: int) -> dict[str, Any]:
    answers = [answer for answer in run.answers if answer.question == number]
    first = answers[0]
    title = f"question {number if first.question_id is None else first.question_id}"
    return {
        "title": f"{title}, {first.category}" if first.category else title,
        "methods": {answer.method: [turn_to_json(turn) for turn in answer.turns] for answer in answers},
    }


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """One answer: what was asked, prefill's piece, and the rounds.

    A round has its pieces, the number of them that were accepted drafts, and its tree: words, parents, confidences in
    hundredths, and which nodes were accepted.
    """
    rounds, at = [], 1
    for (committed, accepted, *_), tree in zip(turn.rounds, turn.trees or (), strict=True):
        rounds.append({"pieces": turn.pieces[at : at + committed], "accepted": accepted, "tree": _tree(turn, tree)})
        at += committed
    return {"asked": turn.asked, "first": turn.pieces[:1], "rounds": rounds}


def _tree(turn: Turn, tree: dict[str, list]) -> dict[str, list]:
    return {
        "words": [turn.words.get(str(token), f"⟨{token}⟩") for token in tree["token"]],
        "parents": tree["parent"],
        "log": tree["log_confidence"],
        "accepted": [node for node, is_accepted in enumerate(tree["accepted"]) if is_accepted],
    }
