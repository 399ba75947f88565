"""The target's features and taps on disk: computed once, equal to those of a step, and of one target and text."""

import contextlib
import dataclasses
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding.drafter import Models
from jaxspec.drafters.edd import Edd
from jaxspec.host.buckets import to_path
from jaxspec.model.llama import Llama
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import BlockObjective, Recipe
from jaxspec.train.methods import edd, lm
from jaxspec.train.run import feature_cache
from jaxspec.train.run.folder import open_run
from jaxspec.train.run.packed import hidden_states, read
from jaxspec.train.run.trainer import fit
from tests.bucket import NAME


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "disk":
        return tmp_path
    request.getfixturevalue("in_bucket")
    return to_path(f"gs://{NAME}")


def test_features_are_computed_once(place: Path):
    shape = lm.shape(40, layers=1, hidden_size=16, head_dim=8, context=12)
    target = Llama(shape, rngs=nnx.Rngs(0))
    tokens = np.random.default_rng(0).integers(0, 40, (6, 12)).astype(np.int32)
    packed = Windows(tokens=tokens, segment=np.zeros_like(tokens), counted=np.ones(tokens.shape, bool))
    batch = lambda rows: Windows(
        tokens=tokens[rows], segment=packed.segment[rows], counted=packed.counted[rows], index=np.array(rows)
    )
    cache = feature_cache.open_cache(place / "features", target, packed)
    found = cache.complete(batch([4, 1])).features
    assert found is not None
    np.testing.assert_array_equal(
        found, jax.jit(hidden_states)(target, jnp.asarray(tokens[[4, 1]]), jnp.zeros((2, 12), jnp.int32))
    )
    assert np.flatnonzero(cache.known).tolist() == [1, 4]

    def never(*_: object) -> jax.Array:
        raise AssertionError

    again = feature_cache.open_cache(place / "features", target, packed)
    again = dataclasses.replace(again, compute=never)
    np.testing.assert_array_equal(again.complete(batch([1, 4])).features, found[::-1])
    other = Llama(shape, rngs=nnx.Rngs(0))
    other.layers[0].attention.o.kernel[...] = other.layers[0].attention.o.kernel[...] + 1e-3
    with pytest.raises(ValueError, match="the hash of target and text is"):
        feature_cache.open_cache(place / "features", other, packed)
    (place / "features/features.json").unlink()
    with pytest.raises(ValueError, match=r"holds features but no features.json"):
        feature_cache.open_cache(place / "features", target, packed)


@pytest.fixture(scope="module")
def target() -> Llama:
    return Llama(lm.shape(40, layers=2, hidden_size=16, head_dim=8, context=12), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def packed() -> Windows:
    rng = np.random.default_rng(0)
    segment = np.repeat([[0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]], 6, axis=0).astype(np.int32)
    tokens = rng.integers(0, 40, (6, 12)).astype(np.int32)
    return Windows(tokens=tokens, segment=segment, counted=rng.random((6, 12)) < 0.8, index=np.arange(6))


@pytest.mark.parametrize("tap", [0, 1])  # of the last layer EDD reads the features
def test_edd_learns_from_the_cache_what_it_learns_without(tap: int, target: Llama, packed: Windows, tmp_path: Path):
    head = edd.initial(target, tap)
    taps = Edd().taps(Models(target=target, draft=head))
    assert len(taps) == (tap < 1)
    complete = feature_cache.open_cache(tmp_path / "cache", target, packed, taps).complete(packed)
    again = feature_cache.open_cache(tmp_path / "cache", target, packed, taps).complete(packed)
    loss = jax.jit(
        jax.value_and_grad(lambda head, target, batch: edd.loss(head, target, batch, None, BlockObjective())[0])
    )
    (without, slope), *cached = (loss(head, target, batch) for batch in (packed, complete, again))
    assert float(without) > 0
    for value, its_slope in cached:
        assert float(value) == pytest.approx(float(without), rel=1e-6)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), its_slope, slope)
    # And it is the cache that was read, not the target.
    assert complete.features is not None
    twice = dataclasses.replace(complete, features=2 * complete.features, taps=tuple(2 * one for one in complete.taps))
    assert float(loss(head, target, twice)[0]) != pytest.approx(float(without), rel=1e-3)


@pytest.mark.soak
def test_edd_runs_the_target_in_the_first_epoch_alone_and_goes_on_bit_for_bit(
    target: Llama, packed: Windows, tmp_path: Path
):
    """Six windows in batches of three: two forwards of the target, however long the run, and though it dies."""
    recipe = Recipe(steps=9, batch_size=3, learning_rate=1e-2, save_every=2)
    loss, taps, forwards = partial(edd.loss, objective=BlockObjective()), (1,), []

    def train(name: str, steps: int) -> dict[str, np.ndarray]:
        """The weights after the run of this name, which dies when it has gone that many steps further."""
        cache = feature_cache.open_cache(tmp_path / f"{name}-features", target, packed, taps)

        def compute(*given: object) -> object:
            forwards.append(name)
            return cache.compute(*given)

        def complete(batch: Windows) -> Windows:
            nonlocal steps
            if (steps := steps - 1) < 0:
                raise KeyboardInterrupt
            return dataclasses.replace(cache, compute=compute).complete(batch)

        with open_run(tmp_path / name, {"command": "edd"}) as run:
            head, _ = fit(loss, edd.initial(target, 0), target, packed, recipe, run, complete=complete)
        return {name: np.asarray(array) for name, array in module_to_dict(head).items()}

    whole = train("whole", 9)
    assert forwards == ["whole"] * 2
    with contextlib.suppress(KeyboardInterrupt):
        train("cut", 3)
    resumed = train("cut", 9)
    assert forwards == ["whole"] * 2 + ["cut"] * 2
    assert all(resumed[name].tobytes() == whole[name].tobytes() for name in whole)


def test_taps_are_the_inputs_of_layers(target: Llama, packed: Windows, tmp_path: Path):
    found = feature_cache.open_cache(tmp_path / "cache", target, packed, (0, 1)).complete(packed)
    encoded = jax.jit(read, static_argnums=3)(target, packed.tokens, packed.segment, (0, 1))
    assert found.features is not None and len(found.taps) == 2
    np.testing.assert_allclose(found.features, encoded.hidden, atol=1e-6)
    for ours, theirs in zip(found.taps, encoded.taps, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(found.taps[0], target.embedding[...][packed.tokens], atol=1e-6)


def test_a_cache_with_other_taps_is_refused(target: Llama, packed: Windows, tmp_path: Path):
    feature_cache.open_cache(tmp_path / "tapped", target, packed, (1,))
    feature_cache.open_cache(tmp_path / "plain", target, packed)
    for folder, taps in (("tapped", ()), ("tapped", (0,)), ("plain", (1,))):
        with pytest.raises(ValueError, match=r"\(the layers is .* delete it or choose another --cache-features"):
            feature_cache.open_cache(tmp_path / folder, target, packed, taps)
