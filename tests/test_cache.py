"""Keys and values of drafted nodes."""

import itertools

import jax.numpy as jnp
import numpy as np

from jaxspec.model import kv_cache as kv
from jaxspec.model.kv_cache import KV


def random(rows: int, seed: int) -> KV:
    rng = np.random.default_rng(seed)
    some = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return KV(k=some(2, 3, 5, rows), v=some(2, 3, rows, 5))


def test_one_node_a_row_is_written_as_several_are():
    nodes, new, outside = random(4, 0), random(1, 1), 4
    twice = KV(k=jnp.concatenate([new.k, new.k], axis=3), v=jnp.concatenate([new.v, new.v], axis=2))
    for slots in itertools.product(range(outside + 1), repeat=2):  # one of each row
        alone = jnp.array(slots)[:, None]
        one = kv.write_nodes(nodes, new, alone)
        several = kv.write_nodes(nodes, twice, jnp.concatenate([alone, jnp.full((2, 1), outside)], axis=1))
        np.testing.assert_array_equal(one.k, several.k)
        np.testing.assert_array_equal(one.v, several.v)
        assert [bool((one.v[row] == nodes.v[row]).all()) for row in (0, 1)] == [slot == outside for slot in slots]
