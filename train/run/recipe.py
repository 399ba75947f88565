"""How to train."""

import dataclasses
from typing import Literal

from jaxspec.train.settings.options import option


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
    """AdamW (arXiv:1711.05101), or Muon for the matrices of decoder layers (arXiv:2502.16982)."""
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
        for name in ("steps", "batch_size", "learning_rate", "accumulate", "clip", "evaluate_every", "save_every"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{option(name)} must be above 0, not {getattr(self, name)}")
        for name in ("weight_decay", "seed", "warmup"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{option(name)} must not be below 0, not {getattr(self, name)}")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{option(name)} must be from 0 to below 1, not {getattr(self, name)}")
        if self.batch_size % self.accumulate:
            raise ValueError(f"--batch-size {self.batch_size} is not a multiple of --accumulate {self.accumulate}")
