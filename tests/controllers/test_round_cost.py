"""The cost of a round, by hand."""

import dataclasses

import jax.numpy as jnp
import pytest
from flax import nnx

from jaxspec.controllers.length_ts import LengthTS
from jaxspec.controllers.round_cost import LengthPlanner
from jaxspec.methods.method import parse_method
from tests.lossless.harness import models

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
    assert PRICED.round_cost(jnp.array([levels]), jnp.array([nodes]))[0] == pytest.approx(cost)


@pytest.mark.parametrize(("context", "share"), [(50, 0.0), (100, 0.0), (200, 0.5), (300, 1.0), (700, 2.0), (1100, 3.0)])
def test_costs_grow_with_the_context(context: int, share: float):
    """Linearly between the contexts that were measured and beyond them, and never below the first."""
    contexts = (
        (100, 1.1, 0.1, (1.0, 1.5, 1.6, 2.0)),
        (300, 2.1, 0.2, (2.0, 2.5, 2.8, 3.0)),
        (700, 3.1, 0.3, (3.0, 3.5, 4.0, 4.0)),
    )
    costs = dataclasses.replace(PRICED, contexts=contexts).at_context(jnp.int32(context))
    found = costs.round_cost(jnp.array([0, 1, 2]), jnp.array([1.0, 2.0, 3.0]))
    assert found == pytest.approx([1.1 + share, 0.1 + 1.5 + 1.1 * share, 0.2 + 1.6 + 1.4 * share])
    assert PRICED.at_context(jnp.int32(context)) is PRICED


@pytest.mark.parametrize("controller", ["expected-gain", "length-ts"])
def test_levels_below_the_heads_own_are_copies_which_cost_nothing(controller: str):
    method = parse_method(f"medusa,history=5+chain,length=8+{controller},cost=0.1,verify=1:1/2:1.5/4:1.6/8:2")
    shape = method.drafter.head_for(models(11).target.config)
    draft = nnx.eval_shape(lambda: method.drafter.build_head(shape, nnx.Rngs(0)))
    fitted = method.fitted(draft)
    assert isinstance(fitted.controller, LengthPlanner)
    costs = fitted.controller.round_cost(jnp.arange(9), jnp.full(9, 8.0))
    assert costs == pytest.approx([2.1, 2.1, 2.2, 2.3, 2.4, 2.5, 2.5, 2.5, 2.5])
    assert str(fitted) == str(method), "it is no setting"
    without = dataclasses.replace(method, history=0)
    assert without.fitted(draft) == without
