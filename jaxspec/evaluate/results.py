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
from jaxspec.evaluate.uncertainty import PerQuestion, RatioOfSums, per_question


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
        forms: by method, fields of `Form`, which reports need besides the log.
    """

    noise: float | None
    target_seconds: dict[str, float] | None
    resumed_seconds: dict[str, dict[str, float]] | None
    level_seconds: dict[str, float] | None
    rest_seconds: dict[str, float] | None
    control_level_seconds: dict[str, float] | None
    control_round_seconds: dict[str, float] | None
    divergences: dict[str, list[dict[str, Any]] | None]
    forms: dict[str, dict[str, Any]]

    def pieces(self, name: str) -> PieceCosts | None:
        """Costs of the pieces of a method's rounds; None if they were not timed."""
        if self.target_seconds is None:
            return None
        assert self.resumed_seconds is not None and self.level_seconds is not None and self.rest_seconds is not None
        assert self.control_level_seconds is not None and self.control_round_seconds is not None
        target = _by_size(self.target_seconds)
        return PieceCosts(
            plain=target[1],
            verify=_by_size(self.resumed_seconds.get(name, {})) or target,
            level=self.level_seconds[name],
            control_level=self.control_level_seconds[name],
            control_round=self.control_round_seconds[name],
            rest=self.rest_seconds[name],
            plain_rest=self.rest_seconds[REFERENCE],
        )


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


def summarise(
    about: Mapping[str, Any], answers: Sequence[Answer], measured: Measured, forms: Mapping[str, Form]
) -> dict[str, Any]:
    """Bench's JSON, from the log of a finished run."""
    simulated = {"simulated": True} if about["settings"].get("simulate") else {}
    return {
        **about,
        **simulated,
        "noise": measured.noise,
        **{name: values for name, values in dataclasses.asdict(measured).items() if name.endswith("_seconds")},
        "methods": by_method(answers, measured, forms),
    }


def by_method(answers: Sequence[Answer], measured: Measured, forms: Mapping[str, Form]) -> dict[str, Any]:
    """`methods` of bench's JSON. The keys of `forms` are the methods as typed."""
    ours = {name: [answer for answer in answers if answer.method == name] for name in forms}
    counted = {name: _counted(found) for name, found in ours.items()}
    by_pass = {name: speeds(found) for name, found in ours.items()}
    asked = {name: per_question(found) for name, found in ours.items()}
    fastest = max(forms, key=lambda name: counted[name]["tokens_per_second"])
    results = {}
    for name, form in forms.items():
        side_by_side = [list(map(history, turns)) for turns in together(ours[name]).values()]
        pieces = measured.pieces(name)
        costs = None if pieces is None else run_costs(side_by_side, pieces, form.sizes)
        draft_cost = None if pieces is None else ratio(pieces.level, pieces.plain)
        divergences = measured.divergences[name]
        speedups = [ratio(speed, plain) for speed, plain in zip(by_pass[name], by_pass[REFERENCE], strict=True)]
        results[name] = {
            "resolved": form.resolved,
            **counted[name],
            "gigabytes_per_second": ratio(
                form.read_bytes * forwards(ours[name]) / 1e9, counted[name]["decode_seconds"]
            ),
            "speedup": ratio(counted[name]["tokens_per_second"], counted[REFERENCE]["tokens_per_second"]),
            "speedup_interval": _against(asked[name], asked[REFERENCE]).interval(),
            "tau_interval": asked[name].tau.interval(),
            "against_fastest": None if name == fastest else against(fastest, asked[name], asked[fastest]),
            **_spread("tokens_per_second", by_pass[name]),
            **_spread("speedup", speedups),
            "modelled_speedup": None if costs is None else costs.speedup,
            "predicted_seconds": None if costs is None else costs.whole,
            "flat_speedup": run_costs(side_by_side, by_bytes(form), form.sizes).speedup,
            "eq14_speedup": None
            if draft_cost is None or not form.is_chain
            else eq14_speedup(_statistics(ours[name]), draft_cost),
            "draft_cost": draft_cost,
            "verify_cost": None if pieces is None else ratio(pieces.verify[max(form.sizes)], pieces.plain),
            "breakdown": None if costs is None else breakdown(costs, counted[name]["decode_seconds"]),
            "divergences": divergences,
            "unexplained_divergences": None if divergences is None else sum(not d["explained"] for d in divergences),
            "categories": categories(ours[name], ours[REFERENCE]),
            "quality": quality.mean(answer.quality for answer in ours[name]),
        }
    return results


def against(fastest: str, ours: PerQuestion, theirs: PerQuestion) -> dict[str, Any]:
    """The speed of a method relative to the fastest one on the same questions, with interval and p-value."""
    speeds = _against(ours, theirs)
    return {
        "method": fastest,
        "ratio": speeds.value,
        "ratio_interval": speeds.interval(),
        "p_value": speeds.p_value(),
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

    def of(found, name):
        return [answer for answer in found if (answer.category or "") == name]

    results = {}
    for name in dict.fromkeys(answer.category or "" for answer in answers):
        ours, plain = of(answers, name), of(reference, name)
        counts = _statistics(ours)
        seconds = _seconds(ours, answers, "decode_seconds")
        speed = ratio(counts.tokens, seconds)
        results[name] = {
            "questions": len(ours),
            **_from_counts(counts),
            "decode_seconds": seconds,
            "tokens_per_second": speed,
            "speedup": ratio(speed, ratio(_statistics(plain).tokens, _seconds(plain, reference, "decode_seconds"))),
        }
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


def forwards(answers: Sequence[Answer]) -> int:
    """Rounds of one method. The rows of a batch share their rounds."""
    return sum(max(len(turn.rounds) for turn in turns) for turns in together(answers).values())


def together(answers: Sequence[Answer]) -> dict[tuple[int, int], list[Turn]]:
    """Turns of one method that were decoded in one batch, by (batch, turn)."""
    found: dict[tuple[int, int], list[Turn]] = {}
    for answer in answers:
        for i, turn in enumerate(answer.turns):
            found.setdefault((answer.batch, i), []).append(turn)
    return found


def _counted(answers: Sequence[Answer]) -> dict[str, Any]:
    counts = _statistics(answers)
    drafts = reliability.add(turn.calibration for answer in answers for turn in answer.turns)
    decode_seconds = _seconds(answers, answers, "decode_seconds")
    return {
        **_from_counts(counts),
        "prefill_seconds": _seconds(answers, answers, "prefill_seconds"),
        "decode_seconds": decode_seconds,
        "tokens_per_second": ratio(counts.tokens, decode_seconds),
        "calibration": reliability.table(drafts),
        "expected_calibration_error": reliability.expected_calibration_error(drafts),
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


def _from_counts(counts: Statistics) -> dict[str, Any]:
    return {
        "tokens": counts.tokens,
        "rounds": counts.rounds,
        "tau": counts.tau,
        "tau_uncut": counts.tau_uncut,
        "tau_drafted": counts.tau_drafted,
        "acceptance_rate": counts.acceptance_rate,
        "acceptance_by_position": list(counts.acceptance_by_position),
        "draft_accuracy": counts.draft_accuracy,
        "draft_share": counts.draft_share,
        "harmonic_mean": counts.harmonic_mean,
        "nodes_per_round": counts.nodes_per_round,
        "nodes_drafted_per_round": counts.nodes_drafted_per_round,
        "depth_per_round": counts.depth_per_round,
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation over the repeats; the deviation of a single value is None."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {f"{name}_mean": statistics.fmean(values) if values else 0.0, f"{name}_deviation": deviation}


def _against(ours: PerQuestion, theirs: PerQuestion) -> RatioOfSums:
    return ours.speed(ours.batch) / theirs.speed(ours.batch)


def _by_size(seconds: Mapping[str, float]) -> dict[int, float]:
    return {int(size): value for size, value in seconds.items()}


def history(turn: Turn) -> RoundCounts:
    """The counts of a turn's rounds."""
    return from_rows(turn.rounds)
