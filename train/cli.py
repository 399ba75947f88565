"""The command `jaxspec-train`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro import conf

from jaxspec.console import parse, run


@dataclasses.dataclass(frozen=True)
class Lm:
    """Train a small LLaMA from scratch, tokenizer included, on a folder of text.

    One file in 40 is kept from training, chosen by a hash of its path; the loss on those is said at the end. OUT is a
    checkpoint like a converted one and appears when it is complete, or not at all. The same seed gives the same bits.

    For example: jaxspec-train lm small --data ~/notes --steps 1000
    """

    out: Annotated[conf.Positional[Path], conf.arg(metavar="OUT")]
    """Checkpoint to make; must not exist."""
    data: Path | None = None
    """Folder of text files (UTF-8); the source of this Python's standard library if not given."""
    layers: int = 4
    """Decoder layers."""
    hidden_size: int = 128
    """Width of the residual stream."""
    head_dim: int = 32
    """Width of an attention head."""
    vocab_size: int = 1024
    """Tokens of the byte-level BPE, two special ones among them."""
    context: int = 256
    """Tokens of a training window, and positions that the model can use."""
    steps: int = 200
    """Optimizer steps."""
    batch_size: int = 16
    """Windows a step."""
    learning_rate: float = 2e-3
    """Peak of AdamW's learning rate, between a warm-up and a cosine decay."""
    weight_decay: float = 0.1
    """AdamW's decay of matrices."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    """Decides the initial weights and the order of the text."""

    def run(self) -> None:
        from jaxspec.train import lm, text

        model = lm.shape(self.vocab_size, self.layers, self.hidden_size, self.head_dim, self.context)
        recipe = lm.Recipe(
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            clip=self.clip,
            seed=self.seed,
        )
        found = text.standard_library() if self.data is None else text.documents(self.data)
        lm.train(self.out, found, model, recipe)


# tyro asks for a subcommand only where there is a choice, even if the other one cannot be seen.
Command = Annotated[Lm, conf.subcommand("lm")] | Annotated[None, conf.Suppress]


def main() -> None:
    """Entry point of the console script."""
    run(lambda: parse(Command, "jaxspec-train", "Train models and draft heads.").run())


if __name__ == "__main__":
    main()
