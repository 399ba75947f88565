"""Compares planned times with measured ones, and says whether the plan holds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxspec.planning.estimate import Interval

HEADER = ("phase", "floor ms", "estimate ms", "measured ms", "within?")


@dataclasses.dataclass(frozen=True)
class Compared:
    """Planned and measured seconds of a phase.

    Attributes:
        floor: a lower bound, the roofline; None: the device is not known.
        estimate: the compiler's; None: it gives none.
        measured: seconds on the device.
    """

    phase: str
    floor: float | None
    estimate: Interval | None
    measured: float

    @property
    def within(self) -> bool | None:
        """Whether the measured time is in the estimated interval; None without an estimate."""
        return None if self.estimate is None else self.estimate.lower <= self.measured <= self.estimate.upper

    @property
    def contradiction(self) -> str:
        """The contradiction between measurement and plan as text; empty if there is none."""
        if self.estimate is None:
            return self._beside(self.floor, "below its floor") if self.floor and self.measured < self.floor else ""
        if self.measured > self.estimate.upper:
            return self._beside(self.estimate.upper, "above its upper end")
        return self._beside(self.estimate.lower, "below its lower end") if self.within is False else ""

    def _beside(self, end: float, how: str) -> str:
        return f"{self.phase} is {abs(self.measured - end) / end:.0%} {how}" if end else f"{self.phase} is {how}"

    def to_json(self) -> dict[str, Any]:
        """The fields for JSON, the interval as [lower, upper]."""
        return {
            "phase": self.phase,
            "floor_seconds": self.floor,
            "estimated_seconds": self.estimate and self.estimate.ends(),
            "measured_seconds": self.measured,
            "within": self.within,
        }


def verdict(rows: Sequence[Compared]) -> str:
    """One sentence: whether the plan holds, and every phase that contradicts it."""
    estimated = [row for row in rows if row.estimate is not None]
    against = "; ".join(row.contradiction for row in rows if row.contradiction)
    if estimated:
        outside = sum(row.within is False for row in estimated)
        count = f"{outside} of {len(estimated)} phases lie outside their interval"
        return f"The plan is wrong here: {count}: {against}." if against else f"The plan holds: {count}."
    if not any(row.floor for row in rows):
        return "Nothing can be compared: there are no floors and no estimates for this device."
    why = "No times are estimated for this device"
    return f"{why}, and a floor is wrong: {against}." if against else f"{why}; nothing ran faster than its floor."


def table(rows: Sequence[Compared]) -> str:
    """The rows in milliseconds, as text."""
    cells = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(HEADER))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in (lines[0], "-+-".join("-" * width for width in widths), *lines[1:]))


def _cells(row: Compared) -> tuple[str, ...]:
    floor = "" if row.floor is None else _milliseconds(row.floor)
    ends = " - ".join(map(_milliseconds, row.estimate.ends())) if row.estimate else "none"
    within = {None: "no interval", True: "yes", False: "NO"}[row.within]
    if row.within is None and row.contradiction:
        within = "below the floor"
    return row.phase, floor, ends, _milliseconds(row.measured), within


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"
