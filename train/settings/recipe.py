"""Options of the optimizer and the training loop."""

import dataclasses
from typing import Literal

from jaxspec.train.settings.spelling import require


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Optimizer and training loop."""

    steps: int
    """Optimizer steps."""
    batch_size: int
    """Training windows per step."""
    learning_rate: float
    """Peak learning rate, after the warm-up. It falls to a tenth of this by a cosine schedule."""
    accumulate: int = 1
    """Split each batch into this many parts, to save memory. The gradient is still that of the whole batch."""
    warmup: int = 100
    """Warm-up steps, but at most a tenth of --steps."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW (arXiv:1711.05101), or Muon (arXiv:2502.16982) for matrices between hidden states, AdamW for the rest."""
    b1: float = 0.9
    """AdamW's decay of the first moment."""
    b2: float = 0.95
    """AdamW's decay of the second moment."""
    weight_decay: float = 0.1
    """Weight decay of matrices. Vectors have none."""
    clip: float = 1.0
    """Gradient clipping: the largest allowed norm or value; see --clip-by."""
    clip_by: Literal["norm", "value"] = "norm"
    """Clip the norm of the whole gradient, or each of its values."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of computation. Trained weights are float32. Default: float32 on a CPU, bfloat16 on an accelerator."""
    seed: int = 0
    """Seed of initial weights, data order, noise and dropout."""
    evaluate_every: int = 500
    """Steps between measurements on held-out text. The last step is measured too."""
    save_every: int = 500
    """Steps between checkpoints of the run."""

    def __post_init__(self) -> None:
        above_0 = ("steps", "batch_size", "learning_rate", "accumulate", "clip", "evaluate_every", "save_every")
        require(self, lambda value: value > 0, "be above 0", *above_0)
        require(self, lambda value: value >= 0, "not be below 0", "weight_decay", "seed", "warmup")
        require(self, lambda value: 0 <= value < 1, "be from 0 to below 1", "b1", "b2")
        if self.batch_size % self.accumulate:
            raise ValueError(f"--batch-size {self.batch_size} is not a multiple of --accumulate {self.accumulate}")
