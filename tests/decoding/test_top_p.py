"""The tokens that top-k and top-p keep, against a sort; and neither gathers a vocabulary on one device."""

import json
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxspec.decoding.sampling import Sampling, keep_top_k, keep_top_p, kept_logits, probabilities
from jaxspec.model import backend
from tests import several_devices

SPECIAL = [-np.inf, -88.0, -1.5, -1e-30, -0.0, 0.0, 2.0, np.nextafter(np.float32(2), np.float32(3)), 60.0]
ROWS = st.lists(
    st.one_of(st.sampled_from(SPECIAL), st.floats(-30, 30, width=32, allow_subnormal=False)), min_size=12, max_size=12
)


COMPILED = jax.jit(lambda platform, function, *given: function(*given), static_argnums=(0, 1))  # for each platform


def compiled(function: Callable, logits: jax.Array, sampling: Sampling) -> jax.Array:
    return COMPILED(backend.platform(), function, logits, sampling)


@pytest.fixture(params=["cpu", "tpu"], scope="module")
def platform(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "platform", lambda: request.param)
        yield


def sorted_top_k(row: np.ndarray, limit: int) -> np.ndarray:
    """Whether each is kept."""
    return row >= np.sort(row)[::-1][min(limit, row.size) - 1] if limit else np.ones(row.size, bool)


def mass_before(row: np.ndarray) -> np.ndarray:
    """The probability of all that is larger than each, in float64."""
    weight = np.exp(row.astype(np.float64) - row.max())
    order = np.argsort(-row, kind="stable")
    before = np.zeros(row.size)
    before[order] = np.cumsum(weight[order]) - weight[order]
    return np.array([before[row == each].min() for each in row]) / weight.sum()


@given(row=ROWS, limit=st.integers(0, 14), share=st.one_of(st.just(1.0), st.floats(2**-10, 1 - 2**-10)))
@pytest.mark.usefixtures("platform")
def test_as_sorting_has_it(row: list[float], limit: int, share: float):
    logits = np.array(row, np.float32)
    kept = sorted_top_k(logits, limit)
    left = np.where(kept, logits, -np.inf).astype(np.float32)
    if share < 1 and np.isfinite(left).any():
        before = mass_before(left)
        assume(np.abs(before - share).min() > 1e-5)  # else rounding decides
        kept &= before < share
    sampling = Sampling(temperature=jnp.ones(2), top_k=jnp.array([limit, 0]), top_p=jnp.array([share, 1.0]))
    found = np.asarray(compiled(kept_logits, jnp.array([logits, logits]), sampling))
    np.testing.assert_array_equal(found[0], np.where(kept, logits, -np.inf))
    np.testing.assert_array_equal(found[1], logits)  # a row without limits beside one that has them


def test_top_k_comes_before_top_p():
    """Of two tokens with 4 and 3 tenths the first has more than half; of all four it has less."""
    logits = jnp.log(jnp.array([[0.4, 0.3, 0.2, 0.1]]))
    both = Sampling(temperature=jnp.ones(1), top_k=jnp.array([2]), top_p=jnp.array([0.5]))
    assert compiled(probabilities, logits, both).tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.usefixtures("platform")
def test_a_row_without_a_distribution_stays_as_it_is():
    rows = jnp.array([[jnp.nan] * 3, [-jnp.nan, 1.0, 2.0], [-jnp.inf] * 3])
    assert keep_top_p(rows, jnp.full((3, 1), 0.5)).tolist()[2] == [-np.inf] * 3
    np.testing.assert_array_equal(keep_top_p(rows, jnp.full((3, 1), 0.5)), rows)
    cut = keep_top_k(rows, jnp.full((3, 1), 1))
    assert jnp.isnan(cut).any(axis=1).tolist() == [True, True, False]


@pytest.mark.usefixtures("platform")
def test_the_largest_is_kept_however_small_the_share():
    rows = jnp.array([[0.0, 0.0, -1.0], [-80.0, -81.0, -jnp.inf]])
    assert (keep_top_p(rows, jnp.full((2, 1), 1e-45)) > -jnp.inf).tolist() == [
        [True, True, False],
        [True, False, False],
    ]


@pytest.mark.usefixtures("platform")
def test_a_whole_vocabulary():
    """Of bfloat16's values there are many ties; the nodes of a row share its limits."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 32000)) * 3, jnp.bfloat16)
    sampling = Sampling(temperature=jnp.array([1.0, 0.5]), top_k=jnp.array([50, 0]), top_p=jnp.array([1.0, 0.9]))
    probs, exact = np.asarray(compiled(probabilities, logits, sampling)), np.asarray(logits, np.float32)
    for node in range(3):
        np.testing.assert_array_equal(probs[0, node] > 0, sorted_top_k(exact[0, node], 50))
        np.testing.assert_array_equal(probs[1, node] > 0, mass_before(exact[1, node] / 0.5) < 0.9)


CUT = """
import json, re, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxspec.model import backend
from jaxspec.decoding.sampling import Sampling, argmax, gumbel, kept_logits
backend.platform = lambda: "{platform}"

def draw(keys, logits, sampling):
    kept = kept_logits(logits, sampling)
    return kept, argmax(kept + gumbel(keys, (1, 4096)))

mesh = jax.make_mesh((8,), ("model",), (jax.sharding.AxisType.Auto,))
logits = 3 * jax.random.normal(jax.random.key(1), (2, 5, 4096))
keys = jax.random.split(jax.random.key(2), 2)
sampling = Sampling(temperature=jnp.ones(2), top_k=jnp.array([50, 0]), top_p=jnp.array([0.9, 0.8]))
cut = jax.device_put(logits, NamedSharding(mesh, P(None, None, "model")))
everywhere = NamedSharding(mesh, P())
given = jax.device_put(keys, everywhere), cut, jax.device_put(sampling, everywhere)
with jax.set_mesh(mesh):
    compiled = jax.jit(draw).lower(*given).compile()
    kept, drawn = compiled(*given)
alone, wanted = jax.jit(draw)(keys, logits, sampling)
shapes = re.findall(r"\\[([\\d,]+)\\]", compiled.as_text())
print(json.dumps(dict(
    same=bool((kept == alone).all() and (drawn == wanted).all()),
    sorts=" sort(" in compiled.as_text(),
    widest=max(int(size) for shape in shapes for size in shape.split(",")),
)))
"""


@pytest.mark.parametrize("platform", ["cpu", pytest.param("tpu", marks=pytest.mark.soak)])
def test_a_vocabulary_cut_in_eight_stays_where_it_is(platform: str):
    """Cut, drawn with noise of which each device makes its own part, and compared: no array has a whole vocabulary."""
    found = json.loads(several_devices.output("-c", CUT.replace("{platform}", platform)))
    assert found == {"same": True, "sorts": False, "widest": 512}
