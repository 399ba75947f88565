"""A head in training is made in parts, each on its device."""

import json

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
