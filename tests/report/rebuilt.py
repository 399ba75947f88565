"""Every number of a page, counted again from the lines of the logs, by other means than the library's."""

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

from jaxspec.methods.method import parse_method


class Rebuilt:
    """One run's log."""

    def __init__(self, path: Path):
        lines = [json.loads(line) for line in Path(f"{path}.jsonl").read_text(encoding="utf-8").splitlines()]
        self.settings, self.measured = lines[0]["settings"]["settings"], lines[-1]["measured"]
        self.answers = lines[1:-1]

    def value(self, method: str, keys: list) -> float:
        """The value under these keys of bench's JSON."""
        found = self.of(method, None)
        if keys[0] == "categories":
            return self.of(method, keys[1])[keys[2]]
        if keys[0] in ("acceptance_by_position", "breakdown", "quality"):
            return found[keys[0]][keys[1]]
        if str(keys[-2:-1]).endswith("_interval']"):
            return self.drawn(method, keys)[keys[-1]]
        if keys[0] == "against_fastest":
            return self.against(method)[keys[1]]
        if keys[0] == "calibration":
            return found["calibration"][keys[1]][keys[2]]
        return found[keys[0]]

    def of(self, method: str, category: str | None) -> dict[str, Any]:
        """All numbers of a method, or of its answers in a category."""
        groups = self.groups(method)
        wanted = lambda answer: category is None or answer["category"] == category
        turns = [turn for group in groups for answer, turn in group if wanted(answer)]
        rows = [row for turn in turns for row in turn["rounds"]]
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
        if category is None:
            found |= self.whole(method, groups, tokens, seconds)
        return found

    def whole(self, method: str, groups: list, tokens: int, seconds: float) -> dict[str, Any]:
        """Numbers that are counted over all answers only."""
        passes = lambda name: [
            sum(sum(row[0] for _, turn in group for row in turn["rounds"]) for group in self.groups(name))
            / sum(group[0][1]["decode_seconds"][i] for group in self.groups(name))
            for i in range(2)
        ]
        ours, plain = passes(method), passes("plain")
        cost = {key: self.measured[f"{key}_seconds"][method] for key in ("level", "control_level", "control_round")}
        (size,) = self.measured["forms"][method]["sizes"]
        once = self.measured["target_seconds"]["1"]
        together, length = [], 0
        for group in groups:
            texts = [turn["rounds"] for _, turn in group]
            together += [max(text[at][2] for text in texts if at < len(text)) for at in range(max(map(len, texts)))]
            length += max(sum(row[0] for row in text) for text in texts)
        parts = {
            "drafting": sum(together) * cost["level"],
            "verification": len(together) * self.measured["target_seconds"][str(size)],
            "control": sum(together) * cost["control_level"] + len(together) * cost["control_round"],
        }
        whole = sum(parts.values()) + len(together) * self.rest(method)
        bins = [[drafts, drafts and confidence / drafts, drafts and accepted / drafts] for drafts, confidence, accepted
                in self.judged(method)]  # fmt: skip
        scores = [answer["quality"] for answer in self.answers if answer["method"] == method]
        return {
            "tokens_per_second_deviation": statistics.stdev(ours),
            "speedup_deviation": statistics.stdev([a / b for a, b in zip(ours, plain, strict=True)]),
            "modelled_speedup": (once + self.rest("plain")) * length / whole,
            "breakdown": {**parts, "other": seconds - sum(parts.values())},
            "unexplained_divergences": sum(not each["explained"] for each in self.measured["divergences"][method]),
            "quality": {key: sum(each[key] for each in scores) / len(scores) for key in scores[0]},
            "calibration": [dict(zip(("count", "confidence", "accepted"), row, strict=True)) for row in bins],
        }

    def totals(self, method: str, unit: str) -> dict[int, tuple[float, float, float]]:
        """Tokens, rounds and seconds of each question, or of each batch of questions."""
        found: dict[int, tuple[float, float, float]] = {}
        for group in self.groups(method):
            seconds = statistics.median(group[0][1]["decode_seconds"])
            for answer, turn in group:
                rounds = turn["rounds"]
                new = (sum(row[0] for row in rounds), len(rounds), seconds / len(group))
                before = found.get(answer[unit], (0, 0, 0))
                found[answer[unit]] = (before[0] + new[0], before[1] + new[1], before[2] + new[2])
        return found

    def fastest(self) -> str:
        return max(self.settings["methods"], key=lambda name: self.of(name, None)["tokens_per_second"])

    def against(self, method: str) -> dict[str, float]:
        """The speed against the fastest method's, and the chance that the signs of the ranks fall at least so unevenly.

        All assignments of signs are counted.
        """
        ours, theirs = (self.totals(name, "batch") for name in (method, self.fastest()))
        speeds = self.of(method, None), self.of(self.fastest(), None)
        logs = [math.log(ours[at][0] * theirs[at][2] / (ours[at][2] * theirs[at][0])) for at in ours]
        logs = sorted((log for log in logs if abs(log) > 1e-12), key=abs)
        uneven = lambda signs: abs(sum(sign * rank for rank, sign in enumerate(signs, 1)))
        drawn = list(itertools.product((1, -1), repeat=len(logs)))
        seen = uneven([1 if log > 0 else -1 for log in logs])
        return {
            "ratio": speeds[0]["tokens_per_second"] / speeds[1]["tokens_per_second"],
            "p_value": sum(uneven(signs) >= seen for signs in drawn) / len(drawn),
        }

    def drawn(self, method: str, keys: list) -> list[float]:
        """A bootstrap of three questions: the ends have each a chance of 1 / 27, which is more than 2.5 %."""
        *_, key, _ = keys
        if key == "tau_interval":
            over = under = self.totals(method, "question")
            ratio = lambda drawn: sum(over[at][0] for at in drawn) / sum(under[at][1] for at in drawn)
        else:
            over = self.totals(method, "batch")
            under = self.totals("plain" if key == "speedup_interval" else self.fastest(), "batch")
            speed = lambda of, drawn: sum(of[at][0] for at in drawn) / sum(of[at][2] for at in drawn)
            ratio = lambda drawn: speed(over, drawn) / speed(under, drawn)
        assert len(over) == 3
        found = [ratio(drawn) for drawn in itertools.product(over, repeat=len(over))]
        return [min(found), max(found)]

    def rest(self, method: str) -> float:
        """Seconds of a round besides its pieces."""
        return self.measured["rest_seconds"][method]

    def groups(self, method: str) -> list[list[tuple[dict, dict]]]:
        """(answer, turn) of the answers that were decoded together."""
        found: dict[tuple[int, int], list] = {}
        for answer in self.answers:
            if answer["method"] == method:
                for i, turn in enumerate(answer["turns"]):
                    found.setdefault((answer["batch"], i), []).append((answer, turn))
        return list(found.values())

    def judged(self, method: str) -> list[list[float]]:
        """Drafts whose parent was accepted, in ten bins of confidence: how many, their confidence, the accepted."""
        bins = [[0.0, 0.0, 0.0] for _ in range(10)]
        for group in self.groups(method):
            for _, turn in group:
                for tree in turn["trees"]:
                    depth: list[int] = []
                    for node, parent in enumerate(tree["parent"]):
                        depth.append(0 if parent < 0 else depth[parent] + 1)
                        # Beyond the end of a text that was cut there is no verdict.
                        if parent >= 0 and tree["accepted"][parent] and depth[node] <= len(tree["committed"]):
                            sure = math.exp(tree["log_confidence"][node] - tree["log_confidence"][parent])
                            row = bins[max(math.ceil(sure * 10) - 1, 0)]
                            row[:] = [row[0] + 1, row[1] + sure, row[2] + tree["accepted"][node]]
        return bins

    def questions(self) -> int:
        """Number of questions."""
        return len({answer["question"] for answer in self.answers})

    def rounds_with(self, method: str, count: str, value: int) -> int:
        """How many rounds have this count."""
        column = ("committed", "accepted", "levels", "drafted", "verified").index(count)
        turns = (turn for group in self.groups(method) for _, turn in group)
        return sum(row[column] == value for turn in turns for row in turn["rounds"])

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
