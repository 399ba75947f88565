"""Keys and values: of drafted nodes, and how the accepted ones come into the cache."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.model import backend, layers
from jaxspec.model import kv_cache as kv
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV


def random(rows: int, seed: int, batch: int = 2) -> KV:
    rng = np.random.default_rng(seed)
    some = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return KV(k=some(batch, 3, 5, rows), v=some(batch, 3, rows, 5))


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


@pytest.mark.parametrize("batch", [1, 2])  # a single row is written by another operation
def test_rows_are_appended_to_every_layer_at_each_sequences_own_place(batch: int):
    cache, rows = ([random(size, seed, batch) for seed in seeds] for size, seeds in ((7, (0, 1)), (3, (2, 3))))
    start = jnp.array([4, 1][:batch])
    found = kv.append(tuple(cache), tuple(rows), start, after=jnp.array([5, 0][:batch]))
    for layer, old, new in zip(found, cache, rows, strict=True):
        for row, at in enumerate(start.tolist()):
            expected = np.concatenate([old.v[row, :, :at], new.v[row], old.v[row, :, at + 3 :]], axis=1)
            np.testing.assert_array_equal(layer.v[row], expected)
            expected = np.concatenate([old.k[row, :, :, :at], new.k[row], old.k[row, :, :, at + 3 :]], axis=2)
            np.testing.assert_array_equal(layer.k[row], expected)


def test_rows_are_written_one_by_one_with_64_bit_types():
    with jax.enable_x64(True):
        write = functools.partial(kv._write_by_rows, axis=2)
        written = jax.eval_shape(write, random(7, 0).v, random(3, 1).v, jnp.arange(2, dtype=jnp.int32))
    assert written.dtype == jnp.float32


def test_a_larger_cache_takes_the_place_of_the_old_one_layer_by_layer(monkeypatch: pytest.MonkeyPatch):
    old = tuple(random(4, seed) for seed in range(3))
    kept, enlarged, gone = [jax.tree.map(np.array, layer) for layer in old], kv._enlarged, []

    def noting(layer: KV, rows: int) -> KV:
        gone.append([leaf.is_deleted() for each in old for leaf in (each.k, each.v)].count(True))
        return enlarged(layer, rows)

    monkeypatch.setattr(kv, "_enlarged", noting)
    new = kv.enlarge(old, 6)
    assert gone == [0, 2, 4]
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    for layer, was in zip(new, kept, strict=True):
        assert layer.k.shape[3] == layer.v.shape[2] == 6
        np.testing.assert_array_equal(layer.k[..., :4], was.k)
        np.testing.assert_array_equal(layer.v[:, :, :4], was.v)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_caches_are_float32_on_a_cpu_and_counted_in_the_models_dtype_for_a_plan(name: str):
    config, dtype = (
        LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8
        ),
        jnp.dtype(name),
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(kv.allocate(config, 1, 4, dtype))} == {jnp.dtype("float32")}
    with backend.no_device():
        assert {leaf.dtype for leaf in jax.tree.leaves(kv.allocate(config, 1, 4, dtype))} == {dtype}


def test_a_single_row_in_bfloat16_is_computed_as_one_of_two():
    x, kernel = (jax.random.normal(jax.random.key(seed), shape) for seed, shape in enumerate([(2, 16), (16, 24)]))
    x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    rows: list[int] = []

    def multiply(x: jax.Array) -> jax.Array:
        rows.append(len(x))
        return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)

    np.testing.assert_array_equal(layers.multiply_padded(x[:1], multiply), multiply(x)[:1])
    assert rows == [2, 2]
