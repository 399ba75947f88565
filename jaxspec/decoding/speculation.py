"""A complete method as a static value, for which the loop is compiled."""

import dataclasses

from jaxtyping import Array, Int

from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.rule import Rule
from jaxspec.decoding.tree import sizes_up_to


@dataclasses.dataclass(frozen=True)
class Speculation:
    """A complete method as a static value. The loop is compiled once for each.

    Attributes:
        tree_sizes: sizes for which verification is compiled, besides the tree's own: those up to 3/4 of it. Each round
            uses the smallest that holds its live nodes.
        log_probs: store log p(token) of the output under the target's own distribution (temperature 1).
        record: store every round's tree and verdict.
    """

    drafter: Drafter
    builder: TreeBuilder
    controller: Controller
    rule: Rule
    tree_sizes: tuple[int, ...] = ()
    log_probs: bool = False
    record: bool = False

    @property
    def verify_sizes(self) -> tuple[int, ...]:
        """The sizes for which verification is compiled; a single one if all trees have the same size.

        A drafter that may abstain mostly drafts a whole chain or nothing, so only the smallest of the smaller sizes is
        compiled for it.
        """
        steps = self.tree_sizes if self.controller.stops or self.builder.varies else ()
        if not steps and self.drafter.abstains:
            steps = self.tree_sizes[:1] if self.builder.is_chain else self.tree_sizes
        steps = sorted({1, *steps}) if self.controller.goes_plain else steps
        return sizes_up_to(self.builder.verified, steps)

    def at_context(self, context: Int[Array, ""]) -> "Speculation":
        """The same method with the traced costs of texts of `context` tokens, for use inside a round."""
        builder, controller = self.builder.at_context(context), self.controller.at_context(context)
        return dataclasses.replace(self, builder=builder, controller=controller)
