"""The command `jaxspec-convert`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro import conf

from jaxspec.console import parse, run


@dataclasses.dataclass(frozen=True)
class Llama:
    """Convert a LLaMA, or a model shaped like one, into a jaxspec checkpoint.

    SRC is a Hugging Face folder, a hub id, or a folder as Meta releases them. Tensors are streamed, so memory stays
    near one shard however large the model is. OUT appears when everything has been checked and written, or not at all.

    For example: jaxspec-convert llama TinyLlama/TinyLlama-1.1B-Chat-v1.0 tinyllama --dtype bfloat16
    """

    src: Annotated[conf.Positional[str], conf.arg(metavar="SRC")]
    """Folder, or hub id such as org/model."""
    out: Annotated[conf.Positional[Path], conf.arg(metavar="OUT")]
    """Checkpoint to make; must not exist."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Dtype of the parameters; the source's if not given."""
    tokenizer: Path | None = None
    """Folder with a Hugging Face tokenizer to take instead of the source's; LLaMA 3 in Meta's format needs one."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""

    def run(self) -> None:
        from jaxspec.convert import hub, llama, tokenizer

        if self.tokenizer is not None:
            tokenizer.check_tokenizer(self.tokenizer)
        from_hub = hub.is_hub_id(self.src)
        if self.revision is not None and not from_hub:
            raise ValueError(f"--revision needs a hub id, and {self.src} is none")
        source = hub.fetch(self.src, self.revision) if from_hub else Path(self.src)
        llama.convert(source, self.out, self.dtype, self.tokenizer)


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the target of a jaxspec checkpoint as a Hugging Face folder: the same bits in the source's dtype.

    For example: jaxspec-convert export tinyllama tinyllama-hf --format hf
    """

    ckpt: Annotated[conf.Positional[Path], conf.arg(metavar="CKPT")]
    """Checkpoint that `jaxspec-convert llama` made."""
    out: Annotated[conf.Positional[Path], conf.arg(metavar="OUT")]
    """Folder to make; must not exist."""
    format: Literal["hf"] = "hf"
    """Hugging Face safetensors, sharded above 5 GB."""

    def run(self) -> None:
        from jaxspec.convert import export

        export.export(self.ckpt, self.out)


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Say what a checkpoint is: format, family, shapes, dtype, parameters, heads.

    PATH is a Hugging Face folder, a Meta folder or a jaxspec checkpoint. Nothing is written.

    For example: jaxspec-convert inspect tinyllama
    """

    path: Annotated[conf.Positional[Path], conf.arg(metavar="PATH")]
    """Folder to look at."""

    def run(self) -> None:
        from jaxspec.convert import inspect

        print(inspect.describe(self.path))


Command = (
    Annotated[Llama, conf.subcommand("llama")]
    | Annotated[Export, conf.subcommand("export")]
    | Annotated[Inspect, conf.subcommand("inspect")]
)


def main() -> None:
    """Entry point of the console script."""
    run(lambda: parse(Command, "jaxspec-convert", "Checkpoints in and out of jaxspec.").run())


if __name__ == "__main__":
    main()
