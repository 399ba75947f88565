"""Skip sets: their form on disk, and sets that need no search (Draft & Verify, arXiv:2309.08168).

On disk a skip set is a head without weights. Its config.json lists the skipped blocks.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.checkpoint import heads
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.layer_skip import LayerSkip, SkipMask, layers_of, skip
from jaxspec.engine.head_weights import head_config, read_shape
from jaxspec.train.methods.trial import Trial


def write_skip_set(
    path: Path, target: CheckpointConfig, skips: SkipMask, chat_args: dict[str, Any] | None = None
) -> None:
    """Writes a set into the folder `path`, which may exist. A method can refer to it by its path."""
    path.mkdir(parents=True, exist_ok=True)
    shape = HeadShape(target.model, layers_of(skips))
    heads.write_config(path, head_config(LayerSkip(), shape, target, chat_args=chat_args))


def read_skip_set(path: Path, target: CheckpointConfig) -> SkipMask:
    """The set at `path`, trained or not. Raises CheckpointError if there is none, or it is for another target."""
    shape = read_shape(path, LayerSkip(), target.model)
    return skip(target.model.num_layers, shape.settings["attention"], shape.settings["mlp"])


def strategies(best: SkipMask, seed: int) -> dict[str, SkipMask]:
    """Other sets with as many skipped blocks as `best`: those of the paper's Table 8, and evenly spread blocks."""
    layers, rng = len(best.attention), np.random.default_rng(seed)
    choose: dict[str, Callable[[int], Sequence[int]]] = {
        "first": lambda count: range(count),
        "middle": lambda count: range((layers - count) // 2, (layers + count) // 2),
        "last": lambda count: range(layers - count, layers),
        "random": lambda count: rng.permutation(layers)[:count].tolist(),
        "uniform": lambda count: [(2 * i + 1) * layers // (2 * count) for i in range(count)],
    }
    counts = sum(best.attention), sum(best.mlp)
    return {name: skip(layers, *map(chosen, counts)) for name, chosen in choose.items()}


def aggressive(trials: Sequence[Trial], attention: float, mlp: float) -> SkipMask:
    """The set that skips these shares (rounded) of attention and of MLP blocks, those with the largest gains.

    It skips more blocks than the best set of a search (Draft & Verify, Appendix E). The paper ranks blocks by
    "probabilities" of its optimiser, without details; here the ranking is by `gains` over all trials.
    """
    layers = len(trials[0].skips.attention)

    def first(gain, share):
        return np.argsort(-gain, kind="stable")[: round(share * layers)].tolist()

    of_attention, of_mlp = np.split(gains(trials), 2)
    return skip(layers, first(of_attention, attention), first(of_mlp, mlp))


def gains(trials: Sequence[Trial]) -> np.ndarray:
    """[2 L], the gain in speedup from skipping each attention block, then each MLP block, the others unchanged.

    These are the slopes of a linear regression of the trials' speedups on their switches. A difference of means would
    not do: a search mostly tries sets near its best ones, so blocks are skipped together, and each would be credited
    with the gain of the others. A ridge term, like one trial in which a block made no difference, keeps the solution
    unique when there are few trials.
    """
    switches = np.array([each.corner for each in trials], float)
    speedups = np.array([each.speedup for each in trials])
    switches -= switches.mean(axis=0)
    normal = switches.T @ switches + np.eye(switches.shape[1])
    return np.linalg.solve(normal, switches.T @ (speedups - speedups.mean()))
