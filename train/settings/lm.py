"""Options of `jaxspec-train lm`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro import conf

from jaxspec.train.settings.data import Data
from jaxspec.train.settings.heads import Dtype
from jaxspec.train.settings.recipe import Recipe
from jaxspec.train.settings.spelling import require


@dataclasses.dataclass(frozen=True)
class Lm:
    """Train a small LLaMA from scratch, tokenizer included, on text.

    OUT is a checkpoint like a converted one, and appears only when it is complete. The same seed gives the same bits.
    The same command resumes a killed run bit-exactly from the last checkpoint in RUN.

    For example: jaxspec-train lm small --data ~/notes --steps 1000
    """

    out: Annotated[conf.Positional[Path], conf.arg(metavar="OUT")]
    """Checkpoint to make; must not exist."""
    data: conf.OmitArgPrefixes[Data] = Data()
    layers: int = 4
    """Decoder layers."""
    hidden_size: int = 128
    """Width of the residual stream."""
    head_dim: int = 32
    """Width of an attention head."""
    vocab_size: int = 1024
    """Vocabulary size of the byte-level BPE, including two special tokens."""
    tied: bool = False
    """Share the weights of embedding and LM head."""
    context: int = 256
    """Tokens of a training window, and the model's context length."""
    layer_dropout: float = 0.0
    """Probability that a step leaves out the last layer. It falls to 0 towards the first layer (LayerSkip's schedule).
    This makes the model usable with early exits and skipped layers."""
    save_dtype: Dtype = "float32"
    """Dtype of the stored parameters."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run, with checkpoints, metrics and a figure. Default: OUT.run."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=200, batch_size=16, learning_rate=2e-3)

    def __post_init__(self) -> None:
        require(self, lambda value: 0 <= value < 1, "be from 0 to below 1", "layer_dropout")
