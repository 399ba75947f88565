"""How to train."""

import dataclasses
from typing import Literal

from jaxspec.train.settings.spelling import require


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train. Each field is an option on the command line, its docstring the help."""

    steps: int
    """Optimizer steps."""
    batch_size: int
    """Windows a step."""
    learning_rate: float
    """Its peak, after the warm-up; a cosine takes it to a tenth."""
    accumulate: int = 1
    """Parts in which a batch is computed, one after another, to save memory; the gradient is that of the whole."""
    warmup: int = 100
    """Steps of warm-up, at most a tenth of all."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW (arXiv:1711.05101), or Muon (arXiv:2502.16982) for matrices between hidden states, AdamW for the rest."""
    b1: float = 0.9
    """AdamW's decay of the first moment."""
    b2: float = 0.95
    """AdamW's decay of the second moment."""
    weight_decay: float = 0.1
    """Decay of matrices; vectors are not decayed."""
    clip: float = 1.0
    """Largest norm of the whole gradient, or largest value in it."""
    clip_by: Literal["norm", "value"] = "norm"
    """Which of the two."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of computation; float32 on a CPU and bfloat16 on an accelerator if not given. What is trained is float32."""
    seed: int = 0
    """Decides the initial weights, the order of the text, noise and dropout."""
    evaluate_every: int = 500
    """Steps between measurements on held-out text, and after the last one."""
    save_every: int = 500
    """Steps between checkpoints of the run."""

    def __post_init__(self) -> None:
        above_0 = ("steps", "batch_size", "learning_rate", "accumulate", "clip", "evaluate_every", "save_every")
        require(self, lambda value: value > 0, "be above 0", *above_0)
        require(self, lambda value: value >= 0, "not be below 0", "weight_decay", "seed", "warmup")
        require(self, lambda value: 0 <= value < 1, "be from 0 to below 1", "b1", "b2")
        if self.batch_size % self.accumulate:
            raise ValueError(f"--batch-size {self.batch_size} is not a multiple of --accumulate {self.accumulate}")
