"""Hyperparameters: of each loss, and of the optimizer. The commands offer each field as an option."""

import dataclasses
import math
from typing import Literal

from jaxspec.host.arguments import check_defaults, check_options


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
    """Split each batch into this many parts, to save memory. The gradient is that of the whole batch, but each part
    makes its own random draws, such as of noise, lengths of blocks and dropout."""
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
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Dtype of computation. Trained weights are float32. Default: float32 on a CPU, bfloat16 on an accelerator, even if
    it decodes in float16, whose gradients may overflow."""
    seed: int = 0
    """Seed of initial weights, data order, noise and dropout."""
    evaluate_every: int = 500
    """Steps between measurements on held-out text. The last step is measured too."""
    save_every: int = 500
    """Steps between checkpoints of the run."""

    def __post_init__(self) -> None:
        above_0 = ("steps", "batch_size", "learning_rate", "accumulate", "clip", "evaluate_every", "save_every")
        check_options(self, lambda value: value > 0, "be above 0", *above_0)
        check_options(self, lambda value: value < math.inf, "be finite", "learning_rate")
        check_options(self, lambda value: value >= 0, "not be below 0", "weight_decay", "seed", "warmup")
        check_options(self, lambda value: 0 <= value < 1, "be from 0 to below 1", "b1", "b2")
        if self.batch_size % self.accumulate:
            raise ValueError(f"--batch-size {self.batch_size} is not a multiple of --accumulate {self.accumulate}")


@dataclasses.dataclass(frozen=True)
class EagleObjective:
    """EAGLE's loss."""

    cross_entropy: float = 0.1
    """Weight of the cross-entropy. The SmoothL1 regression loss has weight 1."""
    noise: float = 0.1
    """Input features get noise from U(-noise, noise)."""
    noise_scale: Literal["constant", "length"] = "constant"
    """constant: as in the paper. length: noise times 512 / tokens of a window, as in EAGLE's published code."""

    def __post_init__(self) -> None:
        check_options(self, lambda value: value >= 0, "not be below 0", "cross_entropy", "noise")


@dataclasses.dataclass(frozen=True)
class Distillation:
    """Loss of a drafter that learns the distribution of the next token."""

    goal: Literal["forward-kl", "cross-entropy"] = "forward-kl"
    """forward-kl: KL(target || draft). cross-entropy: that of the tokens of the text."""
    teacher_temperature: float = 1.0
    """Divides the target's logits before the KL, but not the draft's. 1: the target's own distribution, as in the
    papers. Below 1: a sharper one, for greedy decoding; confidences then come closer to the acceptance rate, but
    sampled text is drafted worse."""

    def __post_init__(self) -> None:
        check_options(self, lambda value: 0 < value < float("inf"), "be above 0", "teacher_temperature")
        if self.goal != "forward-kl":
            check_defaults(self, "--goal forward-kl", "teacher_temperature")


@dataclasses.dataclass(frozen=True)
class BlockObjective(Distillation):
    """The same loss for drafters that are trained in blocks: EDD, and layer skipping."""

    block_min: int = 5
    """Shortest block. Each step, or with --accumulate each part of it, cuts the text into blocks of a random length.
    A block is one round of drafting."""
    block_max: int = 10
    """Longest block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.block_min <= self.block_max:
            raise ValueError(
                "--block-min must be at least 1 and at most --block-max, not --block-min "
                f"{self.block_min} --block-max {self.block_max}"
            )


@dataclasses.dataclass(frozen=True)
class Eagle3Objective:
    """EAGLE-3's loss."""

    draft_steps: int = 7
    """Drafting steps that are unrolled in training (training-time test). 1 trains only the first drafted token."""
    decay: float = 0.8
    """Weight of a step's loss relative to the step before."""

    def __post_init__(self) -> None:
        check_options(self, lambda value: value >= 1, "be at least 1", "draft_steps")
        check_options(self, lambda value: 0 < value <= 1, "be above 0 and at most 1", "decay")


@dataclasses.dataclass(frozen=True)
class DflashObjective(Distillation):
    """The loss of block heads over the tokens of blocks: the text's cross-entropy, or distillation from the target."""

    goal: Literal["cross-entropy", "forward-kl", "dspark"] = "cross-entropy"
    """cross-entropy: that of the tokens of the text, as published for DFlash. forward-kl: KL(target || draft), which is
    better for text that the target did not generate. dspark: 0.1 times the first plus 0.9 times the L1 distance of the
    two distributions, for the tokens of a block before the first that does not count in the loss."""
    anchors: int = 512
    """Blocks per training window. Each begins at a random token; all are drawn anew at each step."""
    weighting: Literal["decay", "d-pace", "uniform"] = "decay"
    """Weights of the tokens of a block. decay: exp(-(k - 1) / --decay-scale) for the k-th drafted token. d-pace: the
    expected number of accepted tokens from that one on, by the head's own probabilities. uniform: 1."""
    decay_scale: float | None = None
    """With --weighting decay: tokens after which the weight has fallen to 1/e. Default: 7, 5 and 4 for blocks of 16, 10
    and 8 tokens, as published; half the block for others."""
    smoothing: float = 0.5
    """With --weighting d-pace: lower bound of a probability. A value above 0 keeps later tokens in the loss while the
    head is poor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, lambda value: value >= 1, "be at least 1", "anchors")
        check_options(self, lambda value: value is None or value > 0, "be above 0", "decay_scale")
        check_options(self, lambda value: 0 <= value <= 1, "be from 0 to 1", "smoothing")
        if self.weighting != "decay":
            check_defaults(self, "--weighting decay", "decay_scale")
        if self.weighting != "d-pace":
            check_defaults(self, "--weighting d-pace", "smoothing")

    def scale(self, block: int) -> float:
        """The decay's scale for blocks of so many tokens."""
        return {16: 7.0, 10: 5.0, 8: 4.0}.get(block, block / 2) if self.decay_scale is None else self.decay_scale
