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

    OUT is a checkpoint like a converted one and appears when it is complete, or not at all. The same seed gives the
    same bits, also where the run is killed in between: the same command goes on from the last checkpoint in RUN.

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
    """Tokens of the byte-level BPE, two special ones among them."""
    tied: bool = False
    """Use the embedding as LM head."""
    context: int = 256
    """Tokens of a training window, and positions that the model can use."""
    layer_dropout: float = 0.0
    """Probability of leaving out the last layer in a step, falling to 0 at the first one (LayerSkip's schedule), so
    that early exits and skipped layers keep their sense."""
    save_dtype: Dtype = "float32"
    """Of the parameters in the checkpoint."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run: checkpoints, metrics and a figure; OUT.run if not given."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=200, batch_size=16, learning_rate=2e-3)

    def __post_init__(self) -> None:
        require(self, lambda value: 0 <= value < 1, "be from 0 to below 1", "layer_dropout")
