"""Suggests the next skip set to try: Bayesian optimisation over switches (Draft & Verify, arXiv:2309.08168, §3.3).

The switches are relaxed to [0, 1]. A Gaussian process models the results so far on this cube. Only its corners are
tried, because all points that round to the same corner are the same set.

To save time, the length scale is refitted at every tenth trial only, and the acquisition is compared at random corners:
of any density, and near the best sets so far.
"""

import dataclasses
import functools
import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import norm

from jaxspec.drafters.layer_skip import SkipMask, layers_of, skip

REFIT = 10  # trials before the first fit, and between fits
_CANDIDATES = 1024
_PARENTS = 5  # the best sets, whose neighbours are candidates
_FLIPS = 4  # most switches in which a neighbour differs
_NOISE = 1e-2  # variance of one trial's noise; the variance of all trials is normalised to 1

Corner = Bool[np.ndarray, " D"]
Corners = Bool[np.ndarray, "N D"]


@dataclasses.dataclass(frozen=True)
class Trial:
    """A set and its results: the speedup over plain decoding (by time per verified token), acceptance rate and tau."""

    skips: SkipMask
    speedup: float
    acceptance_rate: float
    tau: float

    @property
    def corner(self) -> Corner:
        """Whether each attention block, then each MLP block, is skipped."""
        return np.array([*self.skips.attention, *self.skips.mlp])

    def to_json(self) -> dict[str, Any]:
        """The trial as a line of the log."""
        skips = layers_of(self.skips)
        return {**skips, "speedup": self.speedup, "acceptance_rate": self.acceptance_rate, "tau": self.tau}

    @staticmethod
    def from_json(line: dict[str, Any], num_layers: int) -> "Trial":
        """Inverse of `to_json`."""
        values = dict(line)
        skips = skip(num_layers, values.pop("attention"), values.pop("mlp"))
        return Trial(skips, **values)


def suggest(tried: Sequence[Trial], size: int, seed: int) -> Corner:
    """The next set of `size` switches to try. The first is empty, the next are random.

    It depends on the arguments only, so that a resumed search continues as an uninterrupted one. Raises ValueError if
    all sets were tried.
    """
    rng = np.random.default_rng((seed, len(tried)))
    if not tried:
        return np.zeros(size, bool)  # the baseline: nothing is skipped
    known = {each.corner.tobytes() for each in tried}

    def fresh(corners):
        return np.array([c for c in corners if c.tobytes() not in known], bool).reshape(-1, size)

    corners = fresh(rng.random((_CANDIDATES, size)) < rng.random((_CANDIDATES, 1)))  # random, each with its own density
    if fitted := len(tried) // REFIT * REFIT:
        parents = [each.corner for each in sorted(tried, key=lambda each: -each.speedup)[:_PARENTS]]
        corners = np.concatenate([corners, fresh(neighbours(rng, _CANDIDATES, parents))])
    if not len(corners):
        raise ValueError(f"all sets of {size} blocks were tried; lower --trials")
    if not fitted:
        return corners[0]
    process = _process(_kernel(tuple(tried[:fitted])), tried, optimizer=None)
    mean, deviation = process.predict(corners.astype(float), return_std=True)
    best = max(each.speedup for each in tried)
    return corners[expected_improvement(mean, np.maximum(deviation, 1e-9), best).argmax()]


def check_installed() -> None:
    """Raises ValueError if scikit-learn is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise ValueError("the search needs the package scikit-learn: pip install scikit-learn")


def neighbours(rng: np.random.Generator, count: int, parents: Sequence[Corner]) -> Corners:
    """Sets that differ from one of the parents in a few switches."""
    chosen = np.array(parents)[rng.integers(len(parents), size=count)]
    rank = rng.random(chosen.shape).argsort(axis=1).argsort(axis=1)
    return chosen ^ (rank < rng.integers(1, _FLIPS + 1, size=(count, 1)))


def expected_improvement(
    mean: Float[np.ndarray, " N"], deviation: Float[np.ndarray, " N"], best: float
) -> Float[np.ndarray, " N"]:
    """E max(0, X - best) for X ~ N(mean, deviation²)."""
    above = mean - best
    z = above / deviation
    return above * norm.cdf(z) + deviation * norm.pdf(z)


@functools.lru_cache(maxsize=1)
def _kernel(tried: tuple[Trial, ...]) -> Any:
    """The kernel of a Gaussian process, with its length scale fitted to these trials."""
    from sklearn.gaussian_process.kernels import Matern

    return _process(Matern(nu=2.5, length_scale_bounds=(0.1, 1e3)), tried, optimizer="fmin_l_bfgs_b").kernel_


def _process(kernel: Any, tried: Sequence[Trial], optimizer: Any) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    process = GaussianProcessRegressor(kernel, alpha=_NOISE, normalize_y=True, optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that stops early or at a bound is good enough
        return process.fit(np.array([each.corner for each in tried], float), [each.speedup for each in tried])
