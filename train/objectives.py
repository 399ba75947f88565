"""The options of the losses. Kept apart from those, so that `--help` need not load JAX."""

import dataclasses
from typing import Literal

from jaxspec.train.options import option

Distillation = Literal["forward-kl", "cross-entropy"]


@dataclasses.dataclass(frozen=True)
class EagleObjective:
    """What EAGLE minimises."""

    cross_entropy: float = 0.1
    """Weight of the cross-entropy beside the regression's SmoothL1."""
    noise: float = 0.1
    """The features that go in get noise from U(-noise, noise)."""
    noise_scale: Literal["constant", "length"] = "constant"
    """constant, as in the paper; length: times 512 / tokens of a window, as in its published code."""

    def __post_init__(self) -> None:
        for name in ("cross_entropy", "noise"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{option(name)} must not be below 0, not {getattr(self, name)}")
