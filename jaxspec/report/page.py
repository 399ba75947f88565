"""The HTML page: its content for the template `page.html`, with style and script inside."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from jaxspec.evaluate.runlog import Turn, log_of
from jaxspec.evaluate.runner import REFERENCE
from jaxspec.evaluate.simulate import LABEL
from jaxspec.host.atomic import check_apart, check_folder, write_whole
from jaxspec.options.by_command import Report
from jaxspec.report import papers
from jaxspec.report.figures import all_figures, fastest
from jaxspec.report.numbers import WHOLE, Number, number
from jaxspec.report.runs import Run, read
from jaxspec.report.tables import Cell

FOLDER = Path(__file__).parent
TEMPLATES = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True)


def run(settings: Report) -> None:
    """Writes the page. Raises ValueError if a run is missing or not finished, or there is no folder to write into."""
    check_folder(settings.out)
    check_apart(settings.out, *settings.runs, *map(log_of, settings.runs))
    write_whole(settings.out, render(read(settings.runs), settings.generations))
    print(f"wrote {settings.out}")


def render(runs: Sequence[Run], questions: int = 3) -> str:
    """The page as text, with the answers to the first `questions` of each run."""
    data = json.dumps(generations_to_json(runs, questions), separators=(",", ":")).replace("<", "\\u003c")
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    page = TEMPLATES.get_template("page.html").render(
        title=" · ".join(dict.fromkeys(run.target for run in runs)),
        devices="; ".join(dict.fromkeys(f"{run.found['device']}, {run.found['dtype']}" for run in runs)),
        label=LABEL,
        simulated=any(run.simulated for run in runs),
        runs=[_content(run) for run in runs],
        shown=questions,
        figures=all_figures(runs),
        papers=papers.by_paper(runs),
        generations=data,
        style=style,
        script=script,
    )
    return page.strip() + "\n"


def _content(run: Run) -> dict[str, Any]:
    best = next(iter(fastest(run, 1)), None)
    return {
        "run": run,
        "best": best,
        "tiles": [] if best is None else _tiles(run, best),
        "table": papers.overview(run),
        "questions": len({answer.question for answer in run.answers}),
        "settings": {
            "device": run.found["device"],
            "dtype": run.found["dtype"],
            "noise of logits": "not measured" if run.found["noise"] is None else f"{run.found['noise']:.3g}",
            **run.found["versions"],
            **{key: ", ".join(map(str, v)) if isinstance(v, list) else v for key, v in run.settings.items()},
        },
    }


def _tiles(run: Run, best: str) -> list[tuple[str, Number, list[Cell]]]:
    """The most important numbers: label, number, and the text below."""
    speed = lambda name: number(run, name, "tokens_per_second", form=WHOLE)
    tiles: list[tuple[str, Number, list[Cell]]] = [
        ("speedup", number(run, best, "speedup"), ["over plain decoding"]),
        ("tokens per round, τ", number(run, best, "tau"), ["plain decoding has 1"]),
        ("tokens per second", speed(best), [f"{REFERENCE}: ", speed(REFERENCE)]),
    ]
    found = [run.value(name, "unexplained_divergences") for name in run.methods]
    if any(value is None for value in found):
        why = "nothing was compared" if run.simulated else "sampled texts differ by design"
        return [*tiles, ("texts changed", Number(None, WHOLE, []), [why])]
    total = Number(sum(found), WHOLE, ["unexplained", run.number])
    return [*tiles, ("texts changed, all methods", total, ["beyond what rounding explains"])]


def generations_to_json(runs: Sequence[Run], questions: int) -> list[dict[str, Any]]:
    """For each run its title, and the answers to its first questions by every method."""
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
    """One answer: the user's text, prefill's piece, and each round's pieces, number of accepted drafts, and tree."""
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
