"""What `sampling.py` has of its own; that texts are drawn rightly, the lossless battery shows."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.decoding.sampling import Sampling, argmax, probabilities


@given(st.lists(st.sampled_from([-np.inf, -1.5, 0.0, 2.0, np.inf]), min_size=12, max_size=12))
def test_argmax_is_the_first_of_equals(scores: list[float]):
    rows = np.array(scores, np.float32).reshape(2, 2, 3)
    assert argmax(jnp.asarray(rows)).tolist() == rows.argmax(-1).tolist()


def test_at_temperature_0_the_first_of_the_largest_is_certain():
    logits = jnp.array([[0.0, 2.0, 2.0], [0.0, 2.0, 2.0]])
    found = probabilities(logits, Sampling(temperature=jnp.array([0.0, 1.0]), top_k=None, top_p=None))
    assert found[0].tolist() == [0, 1, 0]
    np.testing.assert_allclose(found[1], np.exp([0, 2, 2]) / np.exp([0, 2, 2]).sum(), rtol=1e-6)
