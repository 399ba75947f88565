"""Kernel (for TPUs, interpreted) and fused form (for GPUs) against the plain form; rows past the length poisoned."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array

from jaxspec.model import attention, attention_kernel, backend, kv_cache
from jaxspec.model.attention import Keys, attend
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV
from jaxspec.model.llama import Llama, forward

HEADS, DIM, ROWS = 2, 16, 64
LENGTHS = (0, 1, 15, 16, 17, 37, 64)  # of the sequences of a batch: none, all, and around the ends of blocks
close = lambda ours, plain: np.testing.assert_allclose(ours, plain, rtol=0, atol=2e-6)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_kernel, "BLOCK", 16)


def arguments(group: int, width: int, count: int, poison: float) -> tuple[Array, KV, Array, KV, Array]:
    """Queries, a prefix with `poison` past each length, the lengths, nodes, and a mask under which each sees itself."""
    draw = np.random.default_rng(width)
    batch = len(LENGTHS)
    array = lambda *shape: draw.normal(size=shape).astype(np.float32)
    k, v = array(batch, HEADS, DIM, ROWS), array(batch, HEADS, ROWS, DIM)
    for b, length in enumerate(LENGTHS):
        k[b, :, :, length:] = poison
        v[b, :, length:] = poison
    mask = draw.random((batch, width, count)) < 0.5
    mask[:, np.arange(width), np.arange(width)] = True
    return (
        jnp.asarray(array(batch, HEADS, group, width, DIM)),
        KV(k=jnp.asarray(k), v=jnp.asarray(v)),
        jnp.asarray(LENGTHS),
        KV(k=jnp.asarray(array(batch, HEADS, DIM, count)), v=jnp.asarray(array(batch, HEADS, count, DIM))),
        jnp.asarray(mask),
    )


def segments(prefix: KV, live: Array, nodes: KV, mask: Array) -> tuple[Keys, Keys]:
    return Keys(kv=prefix, mask=live[:, None]), Keys(kv=nodes, mask=mask)


def plain(query: Array, prefix: KV, cached: Array, nodes: KV, mask: Array) -> Array:
    """The plain form, on zeros past each length: nothing times NaN is NaN there."""
    live = jnp.arange(ROWS) < cached[:, None]
    clean = KV(k=jnp.where(live[:, None, None], prefix.k, 0), v=jnp.where(live[:, None, :, None], prefix.v, 0))
    return attend(query, segments(clean, live, nodes, mask))[0]


@pytest.mark.parametrize("poison", [np.nan, 1e30])
@pytest.mark.parametrize(("group", "width", "count"), [(1, 1, 1), (4, 1, 7), (4, 5, 5), (3, 5, 12), (2, 60, 60)])
def test_the_kernel_is_the_plain_form(group: int, width: int, count: int, poison: float):
    given = arguments(group, width, count, poison)
    close(attention_kernel.attend_in_kernel(*given, interpret=True), plain(*given))


def test_the_log_sum_exp_of_the_scores():
    query, prefix, cached, nodes, mask = given = arguments(4, 5, 5, np.nan)
    out, log_total = attention_kernel.attend_on_one_chip(
        query, prefix, nodes, cached, mask, residuals=True, interpret=True
    )
    close(out, plain(*given))
    clean = KV(k=jnp.nan_to_num(prefix.k), v=jnp.nan_to_num(prefix.v))
    _, expected = attend(query, segments(clean, jnp.arange(ROWS) < cached[:, None], nodes, mask))
    close(log_total, expected)


def test_queries_in_parts_of_a_head(monkeypatch: pytest.MonkeyPatch):
    """As prefill has them: each part has the mask of its own rows."""
    monkeypatch.setattr(attention_kernel, "QUERIES", 64)
    given = arguments(2, 256, 256, np.nan)
    assert attention_kernel.queries_at_once(2, 256) == 256
    close(attention_kernel.attend_in_kernel(*given, interpret=True), plain(*given))


@pytest.mark.parametrize(("group", "width", "count"), [(1, 1, 1), (4, 5, 5), (3, 5, 12)])
def test_the_fused_form_is_the_plain_form(group: int, width: int, count: int):
    query, prefix, cached, nodes, mask = given = arguments(group, width, count, 0.0)
    live = jnp.arange(ROWS) < cached[:, None]
    fused = attention.attend_in_cudnn(query, segments(prefix, live, nodes, mask), implementation="xla")
    close(fused, plain(*given))


def test_the_fused_form_is_for_prompts_on_gpus_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    config, used = LlamaConfig(32, 16, 16, 1, 2, 1, 8), []
    model, fused = Llama(config, rngs=nnx.Rngs(0)), partial(attention.attend_in_cudnn, implementation="xla")

    def record(query: Array, *given: Any) -> Array:
        used.append(query.shape[3])
        return fused(query, *given)

    def run(width: int) -> Array:
        jax.clear_caches()  # a layer is traced once for each shape
        cache, tokens = kv_cache.allocate(config, 1, 160, jnp.dtype("float32")), jnp.arange(width)[None] % 32
        mask = attention.causal_mask(1, width)
        return forward(model, tokens, 3 + jnp.arange(width)[None], mask, cache, jnp.array([3])).hidden

    expected = run(128)
    monkeypatch.setattr(attention, "attend_in_cudnn", record)
    monkeypatch.setattr(backend, "platform", lambda: "gpu")
    run(128)
    monkeypatch.setenv("JAXSPEC_ATTENTION", "cudnn")
    close(run(128), expected)
    run(60)
    assert used == [128]


def test_it_is_for_long_caches_on_tpus(monkeypatch: pytest.MonkeyPatch):
    query, long = (1, 8, 4, 5, 128), attention_kernel.LONG
    assert not attention_kernel.fits(query, long)
    monkeypatch.setattr(backend, "platform", lambda: "tpu")
    assert attention_kernel.fits(query, long)
    assert not attention_kernel.fits(query, long // 2)
    assert not attention_kernel.fits(query, long + 64), "whole tiles of memory"
    assert not attention_kernel.fits((1, 8, 4, 5, 80), long)
    assert not attention_kernel.fits((1, 8, 4, 999, 128), long), "queries in blocks of one size"
    assert attention_kernel.fits((1, 8, 4, 512, 128), long)


def test_rows_past_the_length_change_no_bit():
    """Whatever the capacity of the cache: blocks past the length are left out."""
    given = arguments(4, 5, 5, np.nan)
    query, prefix, cached, nodes, mask = given
    longer = KV(
        k=jnp.pad(prefix.k, [(0, 0)] * 3 + [(0, ROWS)], constant_values=np.nan),
        v=jnp.pad(prefix.v, [(0, 0), (0, 0), (0, ROWS), (0, 0)], constant_values=np.nan),
    )
    run = lambda prefix: attention_kernel.attend_in_kernel(query, prefix, cached, nodes, mask, interpret=True)
    assert (np.asarray(run(prefix)) == np.asarray(run(longer))).all()


def test_in_half_precision():
    """The cache in bfloat16: as near to the plain form in float32 as its own rounding."""
    to = lambda dtype, x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
    given = jax.tree.map(partial(to, jnp.bfloat16), arguments(4, 5, 5, 1e30))
    found = attention_kernel.attend_in_kernel(*given, interpret=True)
    assert found.dtype == jnp.bfloat16
    exact = plain(*jax.tree.map(partial(to, jnp.float32), given))
    np.testing.assert_allclose(found.astype(jnp.float32), exact, rtol=0, atol=0.03)
