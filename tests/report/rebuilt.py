"""Numbers of a page, counted again from the lines of the logs, by other means than the library's.

Intervals, p-values, calibration and what follows from timed pieces have tests of their own in tests/evaluate; here they
are looked up in bench's JSON, so that each number of the page is that of its source.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from jaxspec.methods.method import parse_method
from jaxspec.report import runs


class Rebuilt:
    """One run's log."""

    def __init__(self, path: Path):
        lines = [json.loads(line) for line in Path(f"{path}.jsonl").read_text(encoding="utf-8").splitlines()]
        self.settings, self.measured = lines[0]["settings"]["settings"], lines[-1]["measured"]
        self.answers = lines[1:-1]
        self.json = runs.read([path])[0].found["methods"]

    def value(self, method: str, keys: list) -> float:
        """The value under these keys of bench's JSON."""
        category, rest = (keys[1], keys[2:]) if keys[0] == "categories" else (None, keys)
        found = self.of(method, category)
        at: Any = self.json[method]
        if rest[0] in found:
            keys, at = rest, found
        for key in keys:
            at = at[key]
        return at

    def of(self, method: str, category: str | None) -> dict[str, Any]:
        """Numbers of a method, or of its answers in a category."""
        groups = self.groups(method)
        wanted = lambda answer: category is None or answer["category"] == category
        rows = [row for group in groups for answer, turn in group if wanted(answer) for row in turn["rounds"]]
        tokens, accepted, levels, drafted, verified, uncut = map(sum, zip(*rows, strict=True))
        rounds = len(rows)
        share = lambda group: sum(wanted(answer) for answer, _ in group) / len(group)
        seconds = sum(statistics.median(group[0][1]["decode_seconds"]) * share(group) for group in groups)
        precision, recall = accepted / drafted if drafted else 0, accepted / tokens
        found: dict[str, Any] = {
            "tokens": tokens,
            "rounds": rounds,
            "tau": tokens / rounds,
            "tau_uncut": uncut / rounds,
            "tau_drafted": accepted / rounds,
            "acceptance_rate": accepted / levels if levels else 0,
            "acceptance_by_position": positions(rows),
            "unconditional_acceptance_by_position": unconditional(rows),
            "draft_accuracy": precision,
            "draft_share": recall,
            "harmonic_mean": 2 * precision * recall / (precision + recall) if accepted else 0,
            "nodes_per_round": verified / rounds,
            "depth_per_round": levels / rounds,
            "decode_seconds": seconds,
            "tokens_per_second": tokens / seconds,
        }
        plain = found if method == "plain" else self.of("plain", category)
        found["speedup"] = found["tokens_per_second"] / plain["tokens_per_second"]
        return found

    def groups(self, method: str) -> list[list[tuple[dict, dict]]]:
        """(answer, turn) of the answers that were decoded together."""
        found: dict[tuple[int, int], list] = {}
        for answer in self.answers:
            if answer["method"] == method:
                for i, turn in enumerate(answer["turns"]):
                    found.setdefault((answer["batch"], i), []).append((answer, turn))
        return list(found.values())

    def questions(self) -> int:
        """Number of questions."""
        return len({answer["question"] for answer in self.answers})

    def learnt(self, method: str, at: int) -> float:
        """The threshold or the estimate after a round, from the papers' formulas."""
        controller: Any = parse_method(method).controller
        values: list[float] = []
        state: list[float] = []
        for turn in (turn for answer in self.answers if answer["method"] == method for turn in answer["turns"]):
            if not state or not self.settings["keep_state"]:
                state = [0.6] if "adaptive" in method else [3.0, 1.0]
                rate = None
            for _, accepted, levels, *_ in turn["rounds"]:
                if "adaptive" in method:
                    new = accepted / levels
                    rate = new if rate is None else 0.5 * rate + 0.5 * new
                    state = [0.9 * state[0] + 0.1 * (state[0] + (0.01 if rate <= controller.alpha else -0.01))]
                    values.append(state[0])
                else:
                    state = [state[0] + accepted, state[1] + min(accepted + 1, levels) - accepted]
                    values.append(state[0] / sum(state))
        return values[at]


def positions(rows: list[list[int]]) -> list[float]:
    """Among drafts at a position whose predecessors were accepted, the share accepted."""
    found = []
    for at in range(max(row[2] for row in rows)):
        reached = [row for row in rows if row[1] >= at and row[2] > at]
        found.append(sum(row[1] > at for row in reached) / len(reached) if reached else 0.0)
    return found


def unconditional(rows: list[list[int]]) -> list[float]:
    """The share of the rounds that drafted which accepted a draft at a position."""
    drafted = [row for row in rows if row[2]]
    return [sum(row[1] > at for row in drafted) / len(drafted) for at in range(max(row[2] for row in rows))]
