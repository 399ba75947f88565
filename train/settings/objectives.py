"""Options of the losses."""

import dataclasses
from typing import Literal

from jaxspec.train.settings.spelling import require

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
        require(self, lambda value: value >= 0, "not be below 0", "cross_entropy", "noise")


@dataclasses.dataclass(frozen=True)
class BlockObjective:
    """What a drafter minimises that is trained in blocks: EDD, and layer skipping."""

    goal: Distillation = "forward-kl"
    """KL(target || draft), or the cross-entropy of the text's own tokens."""
    block_min: int = 5
    """The text is cut into blocks, each standing for one round of drafting: it sees what the target knows of the blocks
    before it, and embeddings of its own tokens. This is the shortest block; a length is drawn at every step."""
    block_max: int = 10
    """The longest block; the same as --block-min for one fixed length."""

    def __post_init__(self) -> None:
        if not 1 <= self.block_min <= self.block_max:
            raise ValueError(
                f"blocks have at least 1 token and --block-max is not below --block-min, unlike --block-min "
                f"{self.block_min} --block-max {self.block_max}"
            )
