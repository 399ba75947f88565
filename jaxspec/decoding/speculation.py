"""A complete method as a static value, for which the loop is compiled."""

import dataclasses

from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.rule import Rule
from jaxspec.decoding.tree import sizes_up_to
from jaxspec.model.mesh import platform

CPU_SIZES = (1, 2, 4, 6, 8, 16, 32, 64)  # on a CPU every node of a tree costs
ACCELERATOR_SIZES = (8, 16, 32, 64)


@dataclasses.dataclass(frozen=True)
class Speculation:
    """A method, whole and static: one compilation of the loop for each.

    Attributes:
        tree_sizes: verification is compiled for those of these sizes that fit, and the smallest that holds the live
            nodes of a round is taken.
        log_probs: keep log p(token) of the output under the target's own distribution (temperature 1).
        record: keep every round's tree and verdict.
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
        """The sizes that verification is compiled for: one, where trees do not vary."""
        varies = self.drafter.abstains or self.controller.stops or self.builder.varies
        return sizes_up_to(self.builder.verified, self.tree_sizes if varies else ())


def tree_sizes() -> tuple[int, ...]:
    """The sizes to compile verification for on what runs them: the current mesh, or JAX's own device."""
    return CPU_SIZES if platform() == "cpu" else ACCELERATOR_SIZES
