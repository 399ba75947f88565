"""The page of accelerator.py's results: every measured phase beside `jaxspec plan`.

python benchmarks/accelerator_page.py FOLDER/results.json > PAGE.md

The plan is computed here, from shapes and the card's data sheet, and needs no device. There is none for a single TPU.
"""

import functools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.accelerator import OWN
from benchmarks.accelerator_steps import FULL, PLAIN
from jaxspec.options.by_command import PlanSettings
from jaxspec.planning.chips import GPUS
from jaxspec.planning.plan import plan

FAR = 0.2  # a plan that is further off is marked
HEADER = ("step", "what", "ms", "plan, ms", "off", "tokens/s", "remark", "card", "driver", "versions", "date")
PUBLISHED = """Published for LLaMA-3.1-8B, one text, tokens/s: gpt-fast on an A100 93.9, about 70 % of its bandwidth;
SGLang on an H100 158 plain and 373 with EAGLE-3 (its documentation), and 379 at tau 5.39 (its pull request 4247)."""
BY_NODES = {nodes: method for method, nodes in FULL.methods.items()}
Row = tuple[str, float | None, float | None, float | None, str]  # what, seconds, planned seconds, tokens/s, remark


def page(results: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    lines = [HEADER, ("---",) * len(HEADER)]
    steps = results["steps"]
    forwards = {
        int(part.split()[-1]): values["seconds"]
        for setting, found in steps.get("verification", {}).get("found", {}).items()
        for part, values in found.items()
        if setting in ("", OWN) and part.startswith("forward of")
    }
    for step, record in steps.items():
        for setting, found in record["found"].items():
            about = {"card": "", "driver": "", "versions": {}, "date": "", **found.get("about", {})}
            versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
            for part, values in found.items():
                if isinstance(values, Mapping) and part != "about":
                    for row in rows(step, part, values, about["card"], forwards):
                        cells = step, *cells_of(row, setting), about["card"], about["driver"], versions, about["date"]
                        lines.append(tuple(map(str, cells)))
    unfinished = [f"`{name}` is {of['status']}: {of['why']}." for name, of in steps.items() if "why" in of]
    table = [f"| {' | '.join(line)} |" for line in lines]
    marked = f"Plans that are off by more than {FAR:.0%} are in bold."
    return "\n".join([*table, "", marked, PUBLISHED, "", results.get("why", ""), *unfinished, ""])


def cells_of(row: Row, setting: str) -> tuple[str, ...]:
    """The cells of a row's numbers."""
    what, seconds, planned, speed, remark = row
    off = None if seconds is None or not planned else seconds / planned - 1
    shown = "" if off is None else f"**{off:+.0%}**" if abs(off) > FAR else f"{off:+.0%}"
    times = ["" if value is None else f"{1e3 * value:.3f}" for value in (seconds, planned)]
    return (
        f"{what} ({setting})" if setting else what,
        *times,
        shown,
        f"{speed:.1f}" if speed else "",
        remark.strip("; "),
    )


def rows(step: str, part: str, values: Mapping[str, Any], card: str, forwards: Mapping[int, float]) -> Iterator[Row]:
    """The rows of one part of a step.

    Args:
        forwards: seconds of a forward, by its number of nodes.
    """
    speed, last = values.get("tokens_per_second"), part.split()[-1]
    remark = f"compiled in {values['compile_seconds']:.1f} s" if "compile_seconds" in values else ""
    if step == "verification":
        over = f"{values['seconds'] / forwards[1]:.2f} of one node; " if 1 in forwards else ""
        yield part, values["seconds"], planned(card, "verify", BY_NODES.get(int(last))), None, over + remark
    elif part.startswith("prefill"):
        prompt = int(part.split()[2].strip(","))
        plan, floor = plan_of(card, PLAIN, 2 * prompt, 1, prompt), None
        if plan is not None:
            floor, flops = plan["prefill"]["floor_seconds"], plan["prefill"]["flops"]
            remark = f"{flops / values['seconds'] / plan['device']['flops']:.0%} of peak; {remark}"
        yield part, values["seconds"], floor, None, remark
    elif "round_seconds" in values:
        method, batch = part.partition(", batch ")[0], int(last) if ", batch " in part else 1
        compared = step in ("plain", "rounds", "batches") or part.startswith("plain after")
        found = method if compared and method in FULL.methods else PLAIN if compared else None
        rounds = planned(card, "round", found, 2 * int(last) if part.startswith("plain after") else FULL.rows, batch)
        if "share_of_bandwidth" in values:
            remark = f"{values['share_of_bandwidth']:.0%} of the bandwidth of copying; {remark}"
        if "speedup" in values:
            equal = "text equals plain's" if values["text_equals_plain"] else "**text differs from plain's**"
            remark = f"tau {values['tau']:.2f}, {values['speedup']:.2f} × plain, {equal}; {remark}"
        yield f"{part}: round", values["round_seconds"], rounds, speed, remark
        draft = values.get("draft_seconds", 0.0)
        if draft:
            yield f"{part}: draft", draft, planned(card, "draft", method), None, ""
        if step in ("plain", "rounds") and (forward := forwards.get(FULL.methods.get(method, 0))):
            yield f"{part}: outside forwards", values["round_seconds"] - forward - draft, None, None, ""
    else:
        known = [f"{key} {value:.4g}" for key, value in values.items() if isinstance(value, int | float)]
        yield part, None, None, speed, ", ".join(known)


def planned(card: str, phase: str, method: str | None, rows: int = FULL.rows, batch: int = 1) -> float | None:
    """Planned seconds of a phase of a round, `draft`, `verify` or `round`; None: there is no plan."""
    plan = None if method is None else plan_of(card, method, rows, batch)
    if plan is None:
        return None
    of = plan["seconds_per_round"]
    return sum(of.values()) if phase == "round" else of[phase]


@functools.cache
def plan_of(card: str, method: str, rows: int, batch: int = 1, prompt: int | None = None) -> dict[str, Any] | None:
    """`jaxspec plan` for the target of accelerator.py; None if the card is unknown, or a TPU."""
    if (kind := next((kind for kind, name in GPUS.items() if name == card), None)) is None:
        return None
    settings = {"method": method, "device": f"{kind}:1", "batch_size": batch, "context": rows, "prompt": prompt}
    return plan(PlanSettings(model="llama-3.1-8b", **settings))


if __name__ == "__main__":
    print(page(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
