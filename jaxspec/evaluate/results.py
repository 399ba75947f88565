"""Computes the numbers that a run reports: the keys of bench's JSON."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.costs.timing import PieceCosts
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.engine.statistics import ratio, statistics_of
from jaxspec.evaluate import quality, reliability
from jaxspec.evaluate.cost_model import eq14_speedup, run_costs
from jaxspec.evaluate.runlog import Answer, Turn, answers_by_method
from jaxspec.evaluate.runner import REFERENCE
from jaxspec.evaluate.uncertainty import PerQuestion, per_question, seconds_of

COUNTS = (  # names of `Statistics` that are keys of the JSON too
    *("tokens", "rounds", "tau", "tau_uncut", "tau_drafted", "acceptance_rate", "draft_accuracy", "draft_share"),
    *("harmonic_mean", "nodes_per_round", "nodes_drafted_per_round", "depth_per_round"),
)
PREDICTED = ("modelled_speedup", "predicted_seconds", "eq14_speedup", "draft_cost", "verify_cost", "breakdown")
"""Keys of the JSON that are None if the pieces of a round were not timed."""


@dataclasses.dataclass(frozen=True)
class Form:
    """A method's properties."""

    resolved: str  # the method with all its settings
    sizes: tuple[int, ...]  # tree sizes for which verification is compiled
    is_chain: bool
    read_bytes: int  # of the target's weights that a round reads, without drafting
    draft_bytes: float | int  # that drafting reads in a round with one level
    level_bytes: float | int  # that each further level reads


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurements of a run after its last question, by method."""

    noise: float | None  # see `divergence.noise`; None if no text differs or none is compared
    pieces: dict[str, PieceCosts] | None  # None if they were not timed
    divergences: dict[str, list[dict[str, Any]] | None]  # fields of `Divergence`, `explained`; None for sampled texts
    forms: dict[str, Form]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Measured":
        """The measurements in a log. Raises KeyError or TypeError for another version's."""
        forms = {name: Form(**{**form, "sizes": tuple(form["sizes"])}) for name, form in values["forms"].items()}
        if (pieces := values["pieces"]) is not None:
            by_size = lambda verify: {int(size): seconds for size, seconds in verify.items()}
            pieces = {
                name: PieceCosts(**{**costs, "verify": by_size(costs["verify"])}) for name, costs in pieces.items()
            }
        return cls(**{**values, "forms": forms, "pieces": pieces})

    def seconds(self) -> dict[str, Any]:
        """The keys of bench's JSON with the seconds of each piece: of the target by size, of others by method."""
        parts = ("level", "rest", "control_level", "control_round")
        if (pieces := self.pieces) is None:
            return dict.fromkeys(f"{name}_seconds" for name in ("target", "resumed", *parts))
        verify = {name: {str(n): seconds for n, seconds in costs.verify.items()} for name, costs in pieces.items()}
        target = verify[REFERENCE]
        resumed = {name: seconds for name, seconds in verify.items() if seconds != target}
        others = {f"{part}_seconds": {name: getattr(costs, part) for name, costs in pieces.items()} for part in parts}
        return {"target_seconds": target, "resumed_seconds": resumed, **others}


def summarise(about: Mapping[str, Any], answers: Sequence[Answer], measured: Measured) -> dict[str, Any]:
    """Bench's JSON, from the log of a finished run."""
    simulated = {"simulated": True} if about["settings"].get("simulate") else {}
    methods = by_method(answers, measured)
    return {**about, **simulated, "noise": measured.noise, **measured.seconds(), "methods": methods}


def by_method(answers: Sequence[Answer], measured: Measured) -> dict[str, Any]:
    """`methods` of bench's JSON, by the methods as typed."""
    ours = answers_by_method(answers)
    asked = {name: per_question(found) for name, found in ours.items()}
    counted = {name: _timed(found, asked[name].seconds) for name, found in ours.items()}
    by_pass = {name: speeds(found) for name, found in ours.items()}
    by_category = {name: categories(found, asked[name].seconds) for name, found in ours.items()}
    speedup = lambda ours, plain: ratio(ours["tokens_per_second"], plain["tokens_per_second"])
    fastest = max(ours, key=lambda name: counted[name]["tokens_per_second"])
    results = {}
    for name, form in measured.forms.items():
        histories = [[turn.history for turn in turns] for turns in together(ours[name]).values()]
        flat, seconds = run_costs(histories, by_bytes(form), form.sizes), counted[name]["decode_seconds"]
        pieces, divergences = (measured.pieces or {}).get(name), measured.divergences[name]
        drafts = reliability.add(turn.calibration for answer in ours[name] for turn in answer.turns)
        results[name] = {
            "resolved": form.resolved,
            **counted[name],
            "prefill_seconds": float(seconds_of(ours[name], "prefill_seconds").sum()),
            "calibration": reliability.table(drafts),
            "expected_calibration_error": reliability.expected_calibration_error(drafts),
            "gigabytes_per_second": ratio(form.read_bytes * flat.rounds / 1e9, seconds),
            "speedup": speedup(counted[name], counted[REFERENCE]),
            "speedup_interval": (asked[name].speed() / asked[REFERENCE].speed()).interval(),
            "tau_interval": asked[name].tau.interval(),
            "against_fastest": None if name == fastest else _against(fastest, asked[name], asked[fastest]),
            **_spread("tokens_per_second", by_pass[name]),
            **_spread("speedup", list(map(ratio, by_pass[name], by_pass[REFERENCE]))),
            "flat_speedup": flat.speedup,
            **_predicted(form, pieces, histories, seconds),
            "divergences": divergences,
            "unexplained_divergences": None if divergences is None else sum(not d["explained"] for d in divergences),
            "categories": {
                category: {**values, "speedup": speedup(values, by_category[REFERENCE][category])}
                for category, values in by_category[name].items()
            },
            "quality": quality.mean(answer.quality for answer in ours[name]),
        }
    return results


def _predicted(
    form: Form, pieces: PieceCosts | None, histories: Sequence[Sequence[RoundCounts]], seconds: float
) -> dict[str, Any]:
    """The keys PREDICTED of a method. The parts of `breakdown` (EESD, Table 8) are predicted, so `other`, the rest of
    the measured `seconds`, can be negative."""
    if pieces is None:
        return dict.fromkeys(PREDICTED)
    costs, draft_cost = run_costs(histories, pieces, form.sizes), ratio(pieces.level, pieces.plain)
    counts = statistics_of([history for batch in histories for history in batch])
    parts = {"drafting": costs.drafting, "verification": costs.verification, "control": costs.control}
    return {
        "modelled_speedup": costs.speedup,
        "predicted_seconds": costs.whole,
        "eq14_speedup": eq14_speedup(counts, draft_cost) if form.is_chain else None,
        "draft_cost": draft_cost,
        "verify_cost": ratio(pieces.verify[max(form.sizes)], pieces.plain),
        "breakdown": {**parts, "other": seconds - sum(parts.values())},
    }


def _against(fastest: str, ours: PerQuestion, theirs: PerQuestion) -> dict[str, Any]:
    found = ours.speed() / theirs.speed()
    interval, p_value = found.interval(), found.p_value()
    return {"method": fastest, "ratio": found.value, "ratio_interval": interval, "p_value": p_value}


def by_bytes(form: Form) -> PieceCosts:
    """Costs on a memory-bound device, in forwards of the target: time is proportional to the bytes of weights read."""
    level, first = form.level_bytes / form.read_bytes, form.draft_bytes / form.read_bytes
    # `draft_bytes` include the first level. `run_costs` multiplies `level` by all levels, so `rest` subtracts one.
    return PieceCosts(plain=1.0, verify=dict.fromkeys(form.sizes, 1.0), level=level, rest=first - level)


def categories(answers: Sequence[Answer], seconds: np.ndarray) -> dict[str, dict[str, Any]]:
    """A method's results for each category of questions (`""`: without one), from the seconds of each answer."""
    found: dict[str, list[int]] = {}
    for at, answer in enumerate(answers):
        found.setdefault(answer.category or "", []).append(at)
    return {
        name: {"questions": len(places), **_timed([answers[at] for at in places], seconds[places])}
        for name, places in found.items()
    }


def speeds(answers: Sequence[Answer]) -> list[float]:
    """Tokens per second of each timed pass."""
    tokens = statistics_of([turn.history for answer in answers for turn in answer.turns]).tokens
    passes = zip(*(turns[0].decode_seconds for turns in together(answers).values()), strict=True)
    return [ratio(tokens, sum(seconds)) for seconds in passes]


def together(answers: Sequence[Answer]) -> dict[tuple[int, int], list[Turn]]:
    """Turns of one method that were decoded in one batch, by (batch, turn)."""
    found: dict[tuple[int, int], list[Turn]] = {}
    for answer in answers:
        for i, turn in enumerate(answer.turns):
            found.setdefault((answer.batch, i), []).append(turn)
    return found


def _timed(answers: Sequence[Answer], seconds: np.ndarray) -> dict[str, Any]:
    """Counts and speed of some answers, from the seconds of each."""
    counts, whole = statistics_of([turn.history for answer in answers for turn in answer.turns]), float(seconds.sum())
    return {
        **{name: getattr(counts, name) for name in COUNTS},
        "acceptance_by_position": list(counts.acceptance_by_position),
        "unconditional_acceptance_by_position": list(counts.unconditional_acceptance_by_position),
        "decode_seconds": whole,
        "tokens_per_second": ratio(counts.tokens, whole),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation over the repeats; the deviation of a single value is None."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {f"{name}_mean": statistics.fmean(values) if values else 0.0, f"{name}_deviation": deviation}
