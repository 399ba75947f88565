"""Correction of the drafter's confidence for builders that select nodes by it.

A drafter learns the target's distribution, but greedy decoding always takes the target's first choice. So the most
likely child of a node is accepted more often than the drafter says, and the other children about as often.
"""

import dataclasses

import jax.numpy as jnp

from jaxspec.builders.top_paths import TopPaths
from jaxspec.decoding.rule import Proposal, Propose


class ConfidencePower(TopPaths):
    """A builder that raises the probability of each node's first child to a power.

    Attributes:
        power: exponent above temperature 0. With 1 the probability itself is the estimate of the acceptance rate. It is
            the probability given the shared Gumbel noise (`rules/gumbel_coupling.py`), which tends to be too low.
        greedy_power: exponent at temperature 0.
    """

    power: float
    greedy_power: float

    def require_powers(self) -> None:
        """Raises ValueError if a power is not positive and finite."""
        for name in ("power", "greedy_power"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{self.name}: {name} must be above 0, not {getattr(self, name)}")

    def with_power(self, propose: Propose) -> Propose:
        """`propose`, with the first child's probability raised to `power`."""

        def proposed(count: int) -> Proposal:
            found = propose(count)
            first = jnp.arange(found.log_prob.shape[-1]) == 0
            return dataclasses.replace(found, log_prob=found.log_prob * jnp.where(first, self.power, 1.0))

        return proposed
