"""Records that cannot be used are skipped and named, or refused."""

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

from jaxspec.host.terminal import say

_SHOWN = 3

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Bad:
    """A record that cannot be used: its name, which says where it is, and why."""

    name: str
    reason: str


def sift(results: Iterable[T | Bad], strict: bool) -> list[T]:
    """The results that can be used. The others are named in one line of log.

    Args:
        strict: to refuse the first that cannot be used.

    Raises:
        ValueError: one cannot be used and `strict` is set, or none can.
    """
    good: list[T] = []
    bad: list[Bad] = []
    for result in results:
        if not isinstance(result, Bad):
            good.append(result)
        elif strict:
            raise ValueError(f"{result.name}: {result.reason}; mend this record or take it out")
        else:
            bad.append(result)
    if bad and not good:
        raise ValueError(f"none of {len(bad)} records can be used: {_listed(bad)}")
    if bad:
        say(f"skipped {len(bad)} of {len(good) + len(bad)} records: {_listed(bad)}")
    return good


def _listed(bad: list[Bad]) -> str:
    """The first few, and how many more there are."""
    shown = "; ".join(f"{each.name}: {each.reason}" for each in bad[:_SHOWN])
    return f"{shown}; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else shown
