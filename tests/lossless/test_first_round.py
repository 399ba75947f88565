"""The first round after prefill: a row drafts as it does alone, wherever its neighbours' prompts end.

The drafts themselves are compared. Counts would hide a wrong first draft where the target rejects the right one too.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.decoding import loop
from jaxspec.decoding.round_records import Trace
from jaxspec.methods.method import parse_method
from tests.lossless.harness import CHUNK, begun, models, requests, speculation, weights

LENGTHS = (1, CHUNK, CHUNK + 5, 3 * CHUNK + 1)  # in prompts of one, two and four chunks


@pytest.mark.parametrize(
    "name",
    [
        "draft-model+chain,length=3",
        "eagle+eagle2,total=6,depth=2,width=3",
        pytest.param("eagle3+chain,length=3", marks=pytest.mark.soak),
        "edd+chain,length=3",
        pytest.param("dflash+chain,length=3", marks=pytest.mark.soak),
        "early-exit+chain,length=2",
        "medusa+chain,length=2",
    ],
)
def test_first_drafts_do_not_depend_on_other_prompts(name: str):
    spec, known = speculation(parse_method(name), greedy=True), models(vocab_size=23)
    spec, chosen = dataclasses.replace(spec, record=True, tree_sizes=()), weights(spec, known)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 23, n).tolist() for n in LENGTHS]

    def first_round(batch: list[list[int]]) -> tuple[Trace, np.ndarray]:
        """The trees, and the target's features that controllers read."""
        state = begun(spec, chosen, requests(batch, 9), (), 96)
        feature = np.asarray(state.feature)
        return jax.tree.map(np.asarray, loop.decode(spec, chosen, state, jnp.int32(1)).trace), feature

    mixed, features = first_round(prompts)
    drafted = 0
    for row, prompt in enumerate(prompts):
        alone, feature = first_round([prompt] * len(prompts))
        np.testing.assert_allclose(features[row], feature[0], atol=1e-4)
        live = alone.live[0]
        drafted += live.sum() - 1
        np.testing.assert_array_equal(mixed.live[row], live)
        for field in ("token", "parent"):
            assert getattr(mixed, field)[row][live].tolist() == getattr(alone, field)[0][live].tolist()
        np.testing.assert_allclose(mixed.log_confidence[row][live], alone.log_confidence[0][live], atol=1e-4)
    assert drafted > 0


def test_first_log_probs_do_not_depend_on_other_prompts():
    spec = dataclasses.replace(speculation(parse_method("plain"), greedy=True), log_probs=True)
    chosen, rng = weights(spec, models(vocab_size=23)), np.random.default_rng(1)
    prompts = [rng.integers(0, 23, n).tolist() for n in LENGTHS]

    def first(batch: list[list[int]]) -> list[float]:
        found = begun(spec, chosen, requests(batch, 9), (), 96).log_prob
        assert found is not None
        return [float(found[row, len(prompt)]) for row, prompt in enumerate(batch)]

    alone = [first([prompt] * len(prompts))[0] for prompt in prompts]
    assert max(alone) < 0
    np.testing.assert_allclose(first(prompts), alone, atol=1e-4)
