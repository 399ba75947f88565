"""What `sampling.py` has of its own; that texts are drawn rightly, the lossless battery shows."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.decoding.sampling import Sampling, argmax, gumbel, probabilities, row_key


@given(st.lists(st.sampled_from([-np.inf, -1.5, 0.0, 2.0, np.inf]), min_size=12, max_size=12))
def test_argmax_is_the_first_of_equals(scores: list[float]):
    rows = np.array(scores, np.float32).reshape(2, 2, 3)
    assert argmax(jnp.asarray(rows)).tolist() == rows.argmax(-1).tolist()


def test_at_temperature_0_the_first_of_the_largest_is_certain():
    logits = jnp.array([[0.0, 2.0, 2.0], [0.0, 2.0, 2.0]])
    found = probabilities(logits, Sampling(temperature=jnp.array([0.0, 1.0]), top_k=None, top_p=None))
    assert found[0].tolist() == [0, 1, 0]
    np.testing.assert_allclose(found[1], np.exp([0, 2, 2]) / np.exp([0, 2, 2]).sum(), rtol=1e-6)


def test_noise_is_each_rows_own_whatever_jaxs_generator_is():
    seeds, index = jnp.array([5, 5, 6]), jnp.array([0, 1, 0])
    usual = gumbel(jax.vmap(row_key)(seeds, index), (1, 8))
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(gumbel(jax.vmap(row_key)(seeds, index), (1, 8)), usual)
