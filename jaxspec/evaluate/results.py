"""Computes the numbers that a run reports: the keys of bench's JSON."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspec.decoding.round_records import RoundCounts, from_rows
from jaxspec.engine.statistics import Statistics, ratio, statistics_of
from jaxspec.evaluate import quality, reliability
from jaxspec.evaluate.cost_model import PieceCosts, RunCosts, eq14_speedup, run_costs
from jaxspec.evaluate.runlog import Answer, Turn
from jaxspec.evaluate.runner import REFERENCE
from jaxspec.evaluate.uncertainty import PerQuestion, per_question

COUNTS = (
    *("tokens", "rounds", "tau", "tau_uncut", "tau_drafted", "acceptance_rate", "draft_accuracy", "draft_share"),
    *("harmonic_mean", "nodes_per_round", "nodes_drafted_per_round", "depth_per_round"),
)
"""Names of `Statistics` that are keys of the JSON too."""
PREDICTED = ("modelled_speedup", "predicted_seconds", "eq14_speedup", "draft_cost", "verify_cost", "breakdown")
"""Keys of the JSON that are None if the pieces of a round were not timed."""


@dataclasses.dataclass(frozen=True)
class Form:
    """Properties of a method that the results need.

    Attributes:
        resolved: the method with all its settings.
        sizes: tree sizes for which verification is compiled.
        is_chain: whether it drafts a single path.
        read_bytes: bytes of the target's weights that a round reads, without drafting.
        draft_bytes: bytes that drafting reads in a round with one level.
        level_bytes: bytes that each further level reads.
    """

    resolved: str
    sizes: tuple[int, ...]
    is_chain: bool
    read_bytes: int
    draft_bytes: float | int
    level_bytes: float | int


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurements of a run after its last question.

    Attributes:
        noise: see `divergence.noise`; None if no text is compared.
        target_seconds: s_t(n) by n, which is a string as in JSON. This and all other seconds are None if the pieces
            were not timed.
        resumed_seconds: by method and n, for methods whose verification resumes from drafting's layers.
        level_seconds, rest_seconds, control_level_seconds, control_round_seconds: by method, see
            `piece_times.PieceTimes`.
        divergences: by method, fields of `divergence.Divergence`, and `explained`; None for sampled texts, which differ
            by design.
        forms: by method.
    """

    noise: float | None
    target_seconds: dict[str, float] | None
    resumed_seconds: dict[str, dict[str, float]] | None
    level_seconds: dict[str, float] | None
    rest_seconds: dict[str, float] | None
    control_level_seconds: dict[str, float] | None
    control_round_seconds: dict[str, float] | None
    divergences: dict[str, list[dict[str, Any]] | None]
    forms: dict[str, Form]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Measured":
        """The measurements in the last line of a log. Raises KeyError or TypeError for another version's."""
        forms = {name: Form(**{**form, "sizes": tuple(form["sizes"])}) for name, form in values["forms"].items()}
        return cls(**{**values, "forms": forms})

    def pieces(self, name: str) -> PieceCosts | None:
        """Costs of the pieces of a method's rounds; None if they were not timed."""
        if self.target_seconds is None or self.resumed_seconds is None:
            return None
        target = _by_size(self.target_seconds)
        seconds = lambda piece, name=name: getattr(self, f"{piece}_seconds")[name]
        return PieceCosts(
            plain=target[1],
            verify=_by_size(self.resumed_seconds.get(name, {})) or target,
            plain_rest=seconds("rest", REFERENCE),
            **{piece: seconds(piece) for piece in ("level", "rest", "control_level", "control_round")},
        )


def summarise(about: Mapping[str, Any], answers: Sequence[Answer], measured: Measured) -> dict[str, Any]:
    """Bench's JSON, from the log of a finished run."""
    simulated = {"simulated": True} if about["settings"].get("simulate") else {}
    return {
        **about,
        **simulated,
        "noise": measured.noise,
        **{name: values for name, values in vars(measured).items() if name.endswith("_seconds")},
        "methods": by_method(answers, measured),
    }


def by_method(answers: Sequence[Answer], measured: Measured) -> dict[str, Any]:
    """`methods` of bench's JSON, by the methods as typed."""
    forms = measured.forms
    ours = {name: [answer for answer in answers if answer.method == name] for name in forms}
    counted = {name: _counted(found) for name, found in ours.items()}
    by_pass = {name: speeds(found) for name, found in ours.items()}
    asked = {name: per_question(found) for name, found in ours.items()}
    fastest = max(forms, key=lambda name: counted[name]["tokens_per_second"])
    results = {}
    for name, form in forms.items():
        histories = [list(map(history, turns)) for turns in together(ours[name]).values()]
        flat, seconds = run_costs(histories, by_bytes(form), form.sizes), counted[name]["decode_seconds"]
        divergences = measured.divergences[name]
        speedups = [ratio(speed, plain) for speed, plain in zip(by_pass[name], by_pass[REFERENCE], strict=True)]
        predicted: dict[str, Any] = dict.fromkeys(PREDICTED)
        if (pieces := measured.pieces(name)) is not None:
            costs, draft_cost = run_costs(histories, pieces, form.sizes), ratio(pieces.level, pieces.plain)
            predicted = {
                "modelled_speedup": costs.speedup,
                "predicted_seconds": costs.whole,
                "eq14_speedup": eq14_speedup(_statistics(ours[name]), draft_cost) if form.is_chain else None,
                "draft_cost": draft_cost,
                "verify_cost": ratio(pieces.verify[max(form.sizes)], pieces.plain),
                "breakdown": breakdown(costs, seconds),
            }
        results[name] = {
            "resolved": form.resolved,
            **counted[name],
            "gigabytes_per_second": ratio(form.read_bytes * flat.rounds / 1e9, seconds),
            "speedup": ratio(counted[name]["tokens_per_second"], counted[REFERENCE]["tokens_per_second"]),
            "speedup_interval": (asked[name].speed() / asked[REFERENCE].speed()).interval(),
            "tau_interval": asked[name].tau.interval(),
            "against_fastest": None if name == fastest else against(fastest, asked[name], asked[fastest]),
            **_spread("tokens_per_second", by_pass[name]),
            **_spread("speedup", speedups),
            "flat_speedup": flat.speedup,
            **predicted,
            "divergences": divergences,
            "unexplained_divergences": None if divergences is None else sum(not d["explained"] for d in divergences),
            "categories": categories(ours[name], ours[REFERENCE]),
            "quality": quality.mean(answer.quality for answer in ours[name]),
        }
    return results


def against(fastest: str, ours: PerQuestion, theirs: PerQuestion) -> dict[str, Any]:
    """The speed of a method relative to the fastest one on the same questions, with interval and p-value."""
    found = ours.speed() / theirs.speed()
    return {
        "method": fastest,
        "ratio": found.value,
        "ratio_interval": found.interval(),
        "p_value": found.p_value(),
    }


def by_bytes(form: Form) -> PieceCosts:
    """Costs on a memory-bound device, where time is proportional to the bytes of weights read: a tree costs as much as
    one token.

    The unit is one forward of the target.
    """
    level, first = form.level_bytes / form.read_bytes, form.draft_bytes / form.read_bytes
    # `draft_bytes` include the first level. `run_costs` multiplies `level` by all levels, so `rest` subtracts one.
    return PieceCosts(plain=1.0, verify=dict.fromkeys(form.sizes, 1.0), level=level, rest=first - level)


def categories(answers: Sequence[Answer], reference: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """A method's results for each category of questions, in the file's order; `""`: questions without a category."""

    results = {}
    for name in dict.fromkeys(answer.category or "" for answer in answers):
        ours, plain = ([a for a in found if (a.category or "") == name] for found in (answers, reference))
        timed, theirs = _timed(ours, answers), _timed(plain, reference)
        speedup = ratio(timed["tokens_per_second"], theirs["tokens_per_second"])
        results[name] = {"questions": len(ours), **timed, "speedup": speedup}
    return results


def speeds(answers: Sequence[Answer]) -> list[float]:
    """Tokens per second of each timed pass."""
    tokens = _statistics(answers).tokens
    passes = zip(*(turns[0].decode_seconds for turns in together(answers).values()), strict=True)
    return [ratio(tokens, sum(seconds)) for seconds in passes]


def breakdown(costs: RunCosts, decode_seconds: float) -> dict[str, float]:
    """Seconds of decoding by piece (EESD, Table 8): the predicted ones, and `other`, the measured total minus these.

    `other` holds the verdict, the commit and bookkeeping. The pieces are predicted, not measured inside the loop, so
    noise can make `other` negative.
    """
    parts = {"drafting": costs.drafting, "verification": costs.verification, "control": costs.control}
    return {**parts, "other": decode_seconds - sum(parts.values())}


def together(answers: Sequence[Answer]) -> dict[tuple[int, int], list[Turn]]:
    """Turns of one method that were decoded in one batch, by (batch, turn)."""
    found: dict[tuple[int, int], list[Turn]] = {}
    for answer in answers:
        for i, turn in enumerate(answer.turns):
            found.setdefault((answer.batch, i), []).append(turn)
    return found


def _counted(answers: Sequence[Answer]) -> dict[str, Any]:
    drafts = reliability.add(turn.calibration for answer in answers for turn in answer.turns)
    return {
        **_timed(answers, answers),
        "prefill_seconds": _seconds(answers, answers, "prefill_seconds"),
        "calibration": reliability.table(drafts),
        "expected_calibration_error": reliability.expected_calibration_error(drafts),
    }


def _timed(answers: Sequence[Answer], among: Sequence[Answer]) -> dict[str, Any]:
    """Counts and speed of some answers, of all answers `among` of their method."""
    counts, seconds = _statistics(answers), _seconds(answers, among, "decode_seconds")
    return {
        **{name: getattr(counts, name) for name in COUNTS},
        "acceptance_by_position": list(counts.acceptance_by_position),
        "decode_seconds": seconds,
        "tokens_per_second": ratio(counts.tokens, seconds),
    }


def _seconds(answers: Sequence[Answer], among: Sequence[Answer], key: str) -> float:
    """Seconds of some answers, medians over the repeats; `among` are all answers of their method.

    The rows of a batch share its time evenly.
    """
    ours, all_ = together(answers), together(among)
    medians = {at: statistics.median(getattr(turns[0], key)) for at, turns in ours.items()}
    return sum(median * len(ours[at]) / len(all_[at]) for at, median in medians.items())


def _statistics(answers: Sequence[Answer]) -> Statistics:
    return statistics_of([history(turn) for answer in answers for turn in answer.turns])


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation over the repeats; the deviation of a single value is None."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {f"{name}_mean": statistics.fmean(values) if values else 0.0, f"{name}_deviation": deviation}


def _by_size(seconds: Mapping[str, float]) -> dict[int, float]:
    return {int(size): value for size, value in seconds.items()}


def history(turn: Turn) -> RoundCounts:
    """The counts of a turn's rounds."""
    return from_rows(turn.rounds)
