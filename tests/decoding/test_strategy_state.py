"""The state of every drafter and controller is of rows: each of its arrays begins with the axis B, whenever it is seen.

Its types are the same with `jax_enable_x64`. Nothing is computed: shapes are known from tracing.
"""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxspec.builders.chain import Chain
from jaxspec.controllers import CONTROLLERS
from jaxspec.decoding import loop, prefill
from jaxspec.decoding.decode_state import DecodeState, enlarge
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.speculation import Speculation
from jaxspec.decoding.strategy import CostTable
from jaxspec.drafters import DRAFTERS
from jaxspec.drafters.early_exit import EarlyExit
from jaxspec.methods.method import Method, parse_method
from jaxspec.train.methods.acceptance_predictor import Recorder
from tests.lossless.combinations import BUILDERS
from tests.lossless.harness import models, requests, speculation, start, weights

BATCH, LENGTH = 4, 3
STATELESS = {"plain", "layer-skip", "fixed", "threshold"}
NAMES = [*DRAFTERS, "eagle,history=3"]
DRAFTING = [parse_method(name) for name in NAMES]
COSTS = CostTable(plain=1.0, verify=((1, 1.0), (8, 2.0)), level=((1, 0.1),))
NAMED = [name for name, kind in CONTROLLERS.items() if not kind.needs_estimates]  # which has no state
STOPPING = [parse_method(f"draft-model+chain+{name}").with_costs(COSTS) for name in NAMED]
GROWING = [parse_method(f"eagle+{name}") for name in BUILDERS]


@pytest.fixture(scope="module")
def everything() -> Models:
    return models(vocab_size=23)


def seen(spec: Speculation, models: Models) -> dict[str, DecodeState]:
    """The state at every place where it is handed on."""
    asked = requests([[1, 2, 3]] * BATCH, 8)
    begun = jax.eval_shape(lambda models: start(spec, models, asked, (), 64), models)
    read = jax.eval_shape(lambda models, state: prefill.read(spec.drafter, models, state, 8, 0, 8), models, begun)

    def drafting(models: Models, state: DecodeState) -> DecodeState:
        return loop.draft(spec, models, state, state.keys)[1]

    after = jax.eval_shape(lambda models, state: loop.one_round(spec, models, state), models, read)
    return {
        "before the first round": begun,
        "after the prompt": read,
        "while drafting": jax.eval_shape(drafting, models, read),
        "after a round": after,
        "with more room": jax.eval_shape(lambda state: enlarge(spec.drafter, models, state, 128), after),
    }


def strays(state: Any) -> list[str]:
    """The arrays that do not begin with B, or have a weak type: the loop would be compiled again for its own result."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return [jax.tree_util.keystr(path) for path, leaf in leaves if leaf.shape[:1] != (BATCH,) or leaf.weak_type]


@pytest.mark.parametrize("method", DRAFTING, ids=NAMES)
def test_drafters(method: Method, everything: Models):
    spec = speculation(method, greedy=True)
    for when, state in seen(spec, weights(spec, everything)).items():
        assert strays(state.drafter) == [], when
        assert jax.tree.leaves(state.drafter) or method.drafter.name in STATELESS


@pytest.mark.parametrize("method", STOPPING, ids=NAMED)
def test_controllers(method: Method, everything: Models):
    spec = speculation(method, greedy=True)
    for when, state in seen(spec, weights(spec, everything)).items():
        assert strays(state.controller) == [], when
        assert jax.tree.leaves(state.controller) or method.controller.name in STATELESS


@pytest.mark.parametrize("method", [*DRAFTING, *STOPPING, *GROWING], ids=[*NAMES, *NAMED, *BUILDERS])
def test_with_64_bit_types(method: Method, everything: Models):
    """A round that gave another type than it was given could not be a step of the loop."""
    spec = speculation(method, greedy=False)
    with jax.enable_x64(True):
        for when, state in seen(spec, weights(spec, everything)).items():
            wide = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype in (jnp.float64, jnp.int64)]
            assert wide == [], when


def test_the_recorder_of_labels(everything: Models):
    inner = Models(target=everything.target, draft=everything.draft[EarlyExit])
    width = everything.target.config.hidden_size
    recorder = Recorder(LENGTH, width, width, "float32")
    spec = speculation(Method(EarlyExit(), Chain(LENGTH), recorder), greedy=True)
    for when, state in seen(spec, inner).items():
        assert strays(state.controller) == [], when
