"""What `sampling.py` has of its own; that texts are drawn rightly, the lossless battery shows."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.decoding.sampling import argmax


@given(st.lists(st.sampled_from([-np.inf, -1.5, 0.0, 2.0, np.inf]), min_size=12, max_size=12))
def test_argmax_is_the_first_of_equals(scores: list[float]):
    rows = np.array(scores, np.float32).reshape(2, 2, 3)
    assert argmax(jnp.asarray(rows)).tolist() == rows.argmax(-1).tolist()
