"""No drafting: each round generates one token. This is the baseline, with the same loop and cache."""

import dataclasses
from typing import ClassVar, final

from jaxspec.decoding.drafter import Drafter, Drafts, Models, Prefix, State
from jaxspec.decoding.tree import DraftTree, Frontier


@final
@dataclasses.dataclass(frozen=True)
class Plain(Drafter):
    """Plain decoding, the baseline: it does not draft."""

    name: ClassVar[str] = "plain"

    def expand(
        self, models: Models, state: State, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, State]:
        raise ValueError("plain decoding does not draft: its builder is Chain(length=0)")
