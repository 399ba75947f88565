"""The cost of a round, by hand."""

import jax.numpy as jnp
import pytest

from jaxspec.controllers.length_ts import LengthTS
from jaxspec.controllers.round_cost import round_cost

PRICED = LengthTS(cost=0.1, verify=((1, 1.0), (2, 1.5), (4, 1.6), (8, 2.0)))


@pytest.mark.parametrize(
    ("levels", "nodes", "cost"),
    [
        (0, 1.0, 0.1 + 1.0),  # the loop always drafts after the root
        (1, 2.0, 0.1 + 1.5),
        (2, 3.0, 0.2 + 1.6),  # the smallest size that holds them
        (3, 8.0, 0.3 + 2.0),
        (4, 12.0, 0.4 + 2.4),  # beyond the table: 0.1 for each further node, as from 4 to 8
    ],
)
def test_levels_and_verification_are_added(levels: int, nodes: float, cost: float):
    assert round_cost(PRICED, jnp.array([levels]), jnp.array([nodes]))[0] == pytest.approx(cost)
