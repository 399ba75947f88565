"""Which blocks an aggressive skip leaves out (Draft & Verify, Appendix E).

More of them than in the best set of a search, in the order in which its trials speak for leaving them out. The paper
goes by the "probabilities" of its optimiser and says no more; here a block's gain is read from all trials.
"""

from collections.abc import Sequence

import numpy as np

from jaxspec.drafters.skip_mask import SkipMask, skip
from jaxspec.train.methods.trial import Trial


def choose(trials: Sequence[Trial], attention: float, mlp: float) -> SkipMask:
    """Leaves out these shares of the attention and of the MLP blocks, rounded, those of the largest gain."""
    layers = len(trials[0].skips.attention)
    first = lambda gain, share: np.argsort(-gain, kind="stable")[: round(share * layers)].tolist()
    of_attention, of_mlp = np.split(gains(trials), 2)
    return skip(layers, first(of_attention, attention), first(of_mlp, mlp))


def gains(trials: Sequence[Trial]) -> np.ndarray:
    """[2 L] how much faster drafting is without each attention block, then each MLP block, the others as they are.

    The slopes of a linear regression of the trials' speedups on their switches. A search tries mostly sets near its
    best ones, so that blocks are left out together: a plain difference of means would credit each with what the others
    bring. A ridge, as if one trial had found that a block makes no difference, decides where trials are too few.
    """
    switches = np.array([[*each.skips.attention, *each.skips.mlp] for each in trials], float)
    speedups = np.array([each.outcome.speedup for each in trials])
    switches -= switches.mean(axis=0)
    normal = switches.T @ switches + np.eye(switches.shape[1])
    return np.linalg.solve(normal, switches.T @ (speedups - speedups.mean()))
