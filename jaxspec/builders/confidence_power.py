"""Correction of the drafter's confidence for builders that select nodes by it.

A drafter learns the target's distribution, but greedy decoding always takes the target's first choice. So the most
likely child of a node is accepted more often than the drafter says, and the other children about as often.
"""

import dataclasses

import jax.numpy as jnp

from jaxspec.builders.top_paths import TopPaths
from jaxspec.decoding.rule import Proposal, Propose


class ConfidencePower(TopPaths):
    """A builder that raises the probability of the first child of each node to a power.

    Attributes:
        power: 1 takes a probability for the chance to be accepted. At a temperature above 0 it is that of a token given
            the noise that the text is drawn with (`rules/gumbel_coupling.py`), and rather too low than too high.
        greedy_power: the same at temperature 0.
    """

    power: float
    greedy_power: float

    def require_powers(self) -> None:
        """Raises ValueError for a power that is none."""
        for name in ("power", "greedy_power"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{self.name}: {name} must be above 0, not {getattr(self, name)}")

    def with_power(self, propose: Propose) -> Propose:
        """Proposals whose first child is as probable as `power` has it."""

        def proposed(count: int) -> Proposal:
            found = propose(count)
            first = jnp.arange(found.log_prob.shape[-1]) == 0
            return dataclasses.replace(found, log_prob=found.log_prob * jnp.where(first, self.power, 1.0))

        return proposed
