"""No drafting: every round is one token of the target. The baseline, through the same loop and cache."""

import dataclasses
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True)
class Plain:
    """The drafter that is never asked."""

    abstains: ClassVar[bool] = False

    def taps(self, models) -> tuple[int, ...]:
        return ()

    def reuse(self, state) -> None:
        return None

    def init(self, models, batch, rows) -> Any:
        return ()

    def grow(self, state, rows):
        return state

    def observe(self, models, state, committed):
        return state

    def root(self, models, state, prefix, tree):
        raise AssertionError("a tree without levels asks its drafter nothing")

    expand = root
