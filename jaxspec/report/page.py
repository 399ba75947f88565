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
from jaxspec.report.papers import Cell
from jaxspec.report.runs import WHOLE, Number, Run, number, read

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
    generations = [generations_to_json(run, questions) for run in runs]
    data = json.dumps(generations, separators=(",", ":")).replace("<", "\\u003c")
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


def generations_to_json(run: Run, questions: int) -> dict[str, Any]:
    """The run's title, and the answers to its first questions by every method."""
    shown = []
    for question in sorted({answer.question for answer in run.answers})[:questions]:
        answers = [answer for answer in run.answers if answer.question == question]
        first = answers[0]
        title = f"question {question if first.question_id is None else first.question_id}"
        title = f"{title}, {first.category}" if first.category else title
        methods = {answer.method: [turn_to_json(turn) for turn in answer.turns] for answer in answers}
        shown.append({"title": title, "methods": methods})
    return {"title": run.title, "questions": shown}


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """One answer: the user's text, prefill's piece, and each round's pieces, number of accepted drafts, and tree."""
    rounds, at = [], 1
    for (committed, accepted, *_), tree in zip(turn.rounds, turn.trees or (), strict=True):
        nodes = {
            "words": [turn.words.get(str(token), f"⟨{token}⟩") for token in tree["token"]],
            "parents": tree["parent"],
            "log": tree["log_confidence"],
            "accepted": [node for node, is_accepted in enumerate(tree["accepted"]) if is_accepted],
        }
        rounds.append({"pieces": turn.pieces[at : at + committed], "accepted": accepted, "tree": nodes})
        at += committed
    return {"asked": turn.asked, "first": turn.pieces[:1], "rounds": rounds}
