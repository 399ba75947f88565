"""The table of sharding rules, and its use on abstract models, which needs no devices."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, PartitionSpec

from jaxspec.checkpoint import parameters
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.drafters.eagle import EagleHead
from jaxspec.model import kv_cache, sharding
from jaxspec.model.config import LlamaConfig
from jaxspec.model.sharding import (
    AXES,
    DECODING,
    TRAINING,
    make_mesh,
    model_axis_sizes,
    parse_mesh,
    partition_spec,
    read_sizes,
    shared_heads,
)

LLAMA_70B = LlamaConfig(
    vocab_size=32000,
    hidden_size=8192,
    intermediate_size=28672,
    num_layers=8,  # of 80, which would take longer to trace
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
)


def mesh(data: int = 1, kv: int = 1, group: int = 1, spare: int = 1, rows: int = 1) -> AbstractMesh:
    """A split mesh of abstract devices."""
    return AbstractMesh((data, kv, group, spare, rows), AXES)


@pytest.mark.parametrize(
    ("model", "heads", "kv_heads", "sizes"),
    [
        (4, 8, 4, (4, 1, 1)),
        (4, 8, 8, (4, 1, 1)),
        (16, 64, 8, (8, 2, 1)),
        (8, 4, 2, (2, 2, 2)),
        (4, 3, 3, (1, 1, 4)),
        (6, 12, 4, (2, 3, 1)),
    ],
)
def test_the_axis_model_is_split_by_heads(model, heads, kv_heads, sizes):
    config = dataclasses.replace(LLAMA_70B, num_heads=heads, num_kv_heads=kv_heads)
    assert model_axis_sizes(model, config) == sizes
    said = shared_heads(mesh(2, *sizes), config)
    assert (said is None) == (sizes[1] * sizes[2] == 1)
    if said:
        assert f"{kv_heads} KV heads over {model} devices" in said


def test_lengths_that_do_not_divide_are_cut_less():
    wide = mesh(data=2, kv=2, group=2, spare=2)
    cut = lambda *axes, shape, rules=DECODING: partition_spec(wide, axes, shape, rules)
    assert cut("vocab", "embed", shape=(32, 16)) == PartitionSpec(("kv", "group", "spare", "rows"), None)
    assert cut("vocab", "embed", shape=(12, 16)) == PartitionSpec(("kv", "group"), None)
    assert cut("vocab", "embed", shape=(23, 16)) == PartitionSpec(None, None)
    assert cut("batch", "kv_heads", None, None, shape=(3, 2, 8, 64)) == PartitionSpec(None, ("kv",), None, None)
    # FSDP: no axis of the mesh is used twice.
    assert cut("embed", "heads", shape=(16, 16), rules=TRAINING) == PartitionSpec(("data",), ("kv", "group", "rows"))
    assert cut("embed", "embed", shape=(16, 16), rules=TRAINING) == PartitionSpec(("data",), None)


def test_split_rows_halve_the_cache_again():
    cache = jax.eval_shape(lambda: kv_cache.allocate(LLAMA_70B, 2, 64, jnp.dtype("float32")))
    whole = sum(leaf.size for leaf in jax.tree.leaves(cache)) * 4

    def held(mesh: AbstractMesh) -> int:
        put = lambda path, leaf: sharding.placed_leaf(leaf, mesh, kv_cache.axes(path))
        return sharding.device_bytes(jax.tree_util.tree_map_with_path(put, cache))

    assert held(mesh(kv=8, group=2)) == whole / 8
    assert held(mesh(kv=8, rows=2)) == whole / 16
    said = shared_heads(mesh(kv=8, group=2), LLAMA_70B)
    assert said and "--mesh model=8,rows=2 would split" in said


def test_every_parameter_names_its_axes():
    config = dataclasses.replace(LLAMA_70B, num_layers=1)
    head = nnx.eval_shape(lambda: EagleHead(config, rngs=nnx.Rngs(0), bias=True))
    for module in (parameters.abstract(config), head):
        for name, leaf in module_to_dict(sharding.place(module, mesh(kv=8))).items():
            assert len(leaf.sharding.spec) == leaf.ndim, name


def test_small_heads_are_whole_and_large_ones_are_cut():
    of = lambda config: nnx.eval_shape(lambda: EagleHead(config, rngs=nnx.Rngs(0), bias=True))
    held = lambda head: sharding.device_bytes(sharding.place_head(head, mesh(kv=8), jnp.bfloat16))
    small = dataclasses.replace(LLAMA_70B, hidden_size=256, intermediate_size=512, num_heads=8, head_dim=32)
    size = lambda head: sum(leaf.size for leaf in jax.tree.leaves(head)) * 2
    assert held(of(small)) == size(of(small))
    assert held(of(LLAMA_70B)) < size(of(LLAMA_70B)) / 2


def test_meshes_that_cannot_be_are_refused():
    assert parse_mesh("model=1").shape == {"data": 1, "model": 1, "rows": 1}
    for text in ("data", "data=2=3", "data=1,data=1", "tensor=2", "data=x"):
        with pytest.raises(ValueError, match="write data=N,model=M"):
            parse_mesh(text)
    with pytest.raises(ValueError, match="at least one device along each axis"):
        make_mesh(data=0)
    with pytest.raises(ValueError, match="data=64,model=1 needs 64 devices but there are "):
        make_mesh(data=64)
    for make in (lambda: make_mesh(rows=3), lambda: read_sizes("model=1,rows=3")):
        with pytest.raises(ValueError, match="2, 4 or 8 devices, not 3"):
            make()
    with pytest.raises(ValueError, match=r"the mesh has the axes x: make one with jaxspec.make_mesh"):
        sharding.split_mesh(jax.make_mesh((1,), ("x",)), LLAMA_70B)
