"""Compares planned times with measured ones, and says whether the plan holds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxspec.planning.estimate import Interval

HEADER = ("phase", "floor ms", "estimate ms", "measured ms", "within?")


@dataclasses.dataclass(frozen=True)
class Compared:
    """Seconds of a phase.

    Attributes:
        floor: the least that it could take; None: nothing is known of the device.
        estimate: by the compiler; None: it says nothing.
        measured: on the device.
    """

    phase: str
    floor: float | None
    estimate: Interval | None
    measured: float

    @property
    def within(self) -> bool | None:
        """Whether what was measured is in the interval; None if there is none."""
        return None if self.estimate is None else self.estimate.lower <= self.measured <= self.estimate.upper

    @property
    def contradiction(self) -> str:
        """How the measurement contradicts the plan; empty where it does not."""
        if self.estimate is None:
            return self._beside(self.floor, "below its floor") if self.floor and self.measured < self.floor else ""
        if self.measured > self.estimate.upper:
            return self._beside(self.estimate.upper, "above its upper end")
        return self._beside(self.estimate.lower, "below its lower end") if self.within is False else ""

    def _beside(self, end: float, how: str) -> str:
        return f"{self.phase} is {abs(self.measured - end) / end:.0%} {how}" if end else f"{self.phase} is {how}"

    def to_json(self) -> dict[str, Any]:
        """Its fields, the interval as a list."""
        return {
            "phase": self.phase,
            "floor_seconds": self.floor,
            "estimated_seconds": self.estimate and self.estimate.ends(),
            "measured_seconds": self.measured,
            "within": self.within,
        }


def verdict(rows: Sequence[Compared]) -> str:
    """Whether the plan stands, in a sentence that names every phase that contradicts it."""
    estimated = [row for row in rows if row.estimate is not None]
    against = "; ".join(row.contradiction for row in rows if row.contradiction)
    if estimated:
        outside = sum(row.within is False for row in estimated)
        count = f"{outside} of {len(estimated)} phases lie outside of their interval"
        return f"The plan is wrong here: {count}: {against}." if against else f"The plan stands: {count}."
    if not any(row.floor for row in rows):
        return "There is nothing to compare with: neither floors nor estimates are known for this device."
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
