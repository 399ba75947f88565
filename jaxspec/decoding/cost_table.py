"""The costs of drafting and verification on a device, in the form that strategies use."""

import dataclasses
import math

import numpy as np

MEASURED = "measured"
"""The setting of a cost that is measured on the current device."""


Seconds = tuple[tuple[int, float], ...]  # (number of nodes, seconds), ascending
Ratios = tuple[tuple[int, float], ...]  # (number of nodes, cost in units of s_t(1)), ascending
ContextCosts = tuple[int, float, float, tuple[float, ...]]
"""(context in tokens, cost of a round without drafts, of a level, of verification by size), in units of s_t(1) at the
first context."""


@dataclasses.dataclass(frozen=True)
class CostTable:
    """Seconds of the pieces of a round, for one batch size. Numbers of nodes are per sequence.

    Attributes:
        plain: s_t(1): one forward of the target over one token.
        verify: by n: verification of n tree nodes, s_t(n), with the rest of a round; for every compiled tree size.
        level: s_d(w) by w: one drafted level as it occurs in a round, with w nodes expanded at once.
        idle: a round that drafts nothing, in which the drafter reads the new token; None: not measured.
        context: tokens of each sequence's text.
        longer: tables of longer contexts, ascending, for the same sizes and widths.

    Raises:
        ValueError: a table is empty, or a time is not positive and finite.
    """

    plain: float
    verify: Seconds
    level: Seconds
    idle: float | None = None
    context: int = 0
    longer: tuple["CostTable", ...] = ()

    def __post_init__(self) -> None:
        seconds = [self.plain, *[self.idle] * (self.idle is not None)]
        seconds += [taken for _, taken in (*self.verify, *self.level)]
        if not (self.verify and self.level and all(0 < taken < math.inf for taken in seconds)):
            raise ValueError("a cost table needs times for verification and levels, all of them positive")

    def level_cost(self, width: int) -> float:
        """s_d(width) / s_t(1), linearly interpolated; outside the measured widths, the value at the nearest one."""
        widths, seconds = zip(*self.level, strict=True)
        return float(np.interp(width, widths, seconds)) / self.plain

    def by_context(self, width: int) -> tuple[ContextCosts, ...]:
        """The costs at each context, for levels of `width` nodes; empty if any table lacks a round without drafts.

        Costs do not fall as the context grows: a lower measured time counts as noise.
        """
        costs, floor = [], np.zeros(2 + len(self.verify))
        for table in (self, *self.longer):
            if table.idle is None:
                return ()
            level = table.level_cost(width) * table.plain
            seconds = [table.idle, level, *(taken for _, taken in table.verify)]
            floor = np.maximum(floor, np.array(seconds) / self.plain)
            idle, level, *verify = map(round_ratio, floor.tolist())
            costs.append((table.context, idle, level, tuple(verify)))
        return tuple(costs)


def round_ratio(value: float) -> float:
    """Rounds to three significant digits, the precision of a measured time."""
    return float(f"{value:.3g}")


def read_ratio(text: str) -> float | None:
    """Reads a cost in units of s_t(1), the target's forward over one token; None for `measured`. Raises ValueError."""
    if text == MEASURED:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"a cost is a number such as 0.05, or {MEASURED}, not {text!r}")
    return value


def show_ratio(value: float | None) -> str:
    """Inverse of `read_ratio`."""
    return MEASURED if value is None else str(value)


def read_ratios(text: str) -> Ratios | None:
    """Reads costs by number of nodes, such as `1:1/2:1.45/4:1.7`; None for `measured`. Raises ValueError."""
    if text == MEASURED:
        return None
    try:
        pairs = [pair.split(":") for pair in text.split("/")]
        return tuple((int(nodes), float(cost)) for nodes, cost in pairs)
    except ValueError:
        raise ValueError(f"costs are given as 1:1.0/8:1.9/64:6.0 or {MEASURED}, not {text!r}") from None


def show_ratios(values: Ratios | None) -> str:
    """Inverse of `read_ratios`."""
    return MEASURED if values is None else "/".join(f"{nodes}:{cost}" for nodes, cost in values)
