"""From answers to the numbers that a run reports: the keys of bench's JSON."""

import dataclasses
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.evaluate.cost import modelled_speedup
from jaxspec.evaluate.metrics import count, ratio
from jaxspec.evaluate.runlog import Answer, Turn
from jaxspec.evaluate.runner import REFERENCE


@dataclasses.dataclass(frozen=True)
class Measured:
    """What is measured once for a run, after its last question.

    Attributes:
        noise: see `divergence.noise`.
        target_seconds: s_t(n) by n, as a string, for that is what JSON has.
        level_seconds: s_d by method.
        divergences: by method, fields of `divergence.Divergence` and whether it is `explained`; None where the
            methods' texts differ by design, since they are sampled.
    """

    noise: float
    target_seconds: dict[str, float]
    level_seconds: dict[str, float]
    divergences: dict[str, list[dict[str, Any]] | None]


def tally(
    answers: Sequence[Answer], measured: Measured, methods: Mapping[str, tuple[str, Collection[int]]]
) -> dict[str, Any]:
    """`methods` of bench's JSON.

    Args:
        methods: by name as typed, the method with all its settings and the tree sizes that it verifies.
    """
    by_method = {name: [answer for answer in answers if answer.method == name] for name in methods}
    counted = {name: _counted(found) for name, found in by_method.items()}
    target = {int(size): seconds for size, seconds in measured.target_seconds.items()}
    flat = dict.fromkeys(target, target[1])  # a device on which verifying a tree costs what one token does
    results = {}
    for name, (resolved, sizes) in methods.items():
        histories = [list(map(_history, turns)) for turns in together(by_method[name])]
        divergences = measured.divergences[name]
        results[name] = {
            "resolved": resolved,
            **counted[name],
            "speedup": ratio(counted[name]["tokens_per_second"], counted[REFERENCE]["tokens_per_second"]),
            "modelled_speedup": modelled_speedup(histories, target, measured.level_seconds[name], sizes),
            "flat_speedup": modelled_speedup(histories, flat, measured.level_seconds[name], sizes),
            "draft_cost": ratio(measured.level_seconds[name], target[1]),
            "verify_cost": ratio(target[max(sizes)], target[1]),
            "divergences": divergences,
            "unexplained_divergences": None if divergences is None else sum(not d["explained"] for d in divergences),
        }
    return results


def together(answers: Sequence[Answer]) -> list[list[Turn]]:
    """Turns of one method, those that were decoded together side by side."""
    found: dict[tuple[int, int], list[Turn]] = {}
    for answer in answers:
        for i, turn in enumerate(answer.turns):
            found.setdefault((answer.batch, i), []).append(turn)
    return list(found.values())


def _counted(answers: Sequence[Answer]) -> dict[str, Any]:
    turns = [turn for answer in answers for turn in answer.turns]
    counts = count([_history(turn) for turn in turns])
    # Rows of a batch share its time; the median is over the repeats.
    seconds = lambda read: sum(statistics.median(read(side_by_side[0])) for side_by_side in together(answers))
    decode_seconds = seconds(lambda turn: turn.decode_seconds)
    return {
        "tokens": counts.tokens,
        "rounds": counts.rounds,
        "prefill_seconds": seconds(lambda turn: turn.prefill_seconds),
        "decode_seconds": decode_seconds,
        "tokens_per_second": ratio(counts.tokens, decode_seconds),
        "tau": counts.tau,
        "tau_drafted": counts.tau_drafted,
        "acceptance_rate": counts.acceptance_rate,
        "acceptance_by_position": list(counts.acceptance_by_position),
        "draft_share": counts.draft_share,
        "harmonic_mean": counts.harmonic_mean,
        "nodes_per_round": counts.nodes_per_round,
        "nodes_drafted_per_round": counts.nodes_drafted_per_round,
        "depth_per_round": counts.depth_per_round,
    }


def _history(turn: Turn) -> np.ndarray:
    return np.array(turn.rounds, int).reshape(-1, 5)
