"""A head in training is made in parts, each on its device, and of parameters alone."""

import json
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx

from jaxspec.train.run.heads import check_trainable
from tests import several_devices

PROGRAM = """
import json
import jax, numpy as np
from jaxspec.drafters import Eagle
from jaxspec.model.sharding import make_mesh, split_mesh
from jaxspec.train.run.heads import built
from tests.evaluate.tiny import MODEL

drafter, mesh = Eagle(), split_mesh(make_mesh(data=2, model=4), MODEL)
whole, cut = (jax.tree.leaves(built(where, drafter, drafter.head_for(MODEL), 0)) for where in (None, mesh))
print(json.dumps({
    "same": all(np.allclose(ours, theirs, rtol=1e-5) for ours, theirs in zip(whole, cut, strict=True)),
    "random": any(np.std(leaf) for leaf in whole),
    "devices": max(len(leaf.sharding.device_set) for leaf in whole),
    "share": sum(leaf.addressable_shards[0].data.size for leaf in cut) / sum(leaf.size for leaf in whole),
}))
"""


def test_each_device_makes_its_part():
    found = json.loads(several_devices.output("-c", PROGRAM))
    assert found["same"] and found["random"]
    assert found["devices"] == 1
    assert 1 / 8 <= found["share"] < 1 / 8 + 0.03  # two KV heads cut their kernels in four, data included


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (lambda rngs: nnx.Dropout(0.1, rngs=rngs), "part.rngs.count of the head is a RngCount of uint32"),
        (lambda rngs: nnx.BatchNorm(2, rngs=rngs), "part.mean of the head is a BatchStat of float32"),
        (lambda rngs: nnx.Param(jnp.zeros(2, jnp.int32)), "part of the head is a Param of int32"),
    ],
)
def test_a_head_with_other_state_than_parameters_is_refused(part: Any, named: str):
    linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    check_trainable(linear)
    with pytest.raises(ValueError, match=named):
        check_trainable(nnx.Dict(linear=linear, part=part(nnx.Rngs(0))))
