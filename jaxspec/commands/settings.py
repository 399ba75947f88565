"""Options of the commands that decode, or say what there is to decode with. Kept apart from the work, so that `--help`
need not load JAX."""

import dataclasses
from pathlib import Path
from typing import Literal

from tyro import conf

from jaxspec.decoding.request import SamplingParams
from jaxspec.engine.device_options import Devices


@dataclasses.dataclass(frozen=True)
class Generate:
    """Generate text: what plain decoding of the target would give, sooner.

    For example: jaxspec generate --target tinyllama --prompt "def main():" --max-new-tokens 64 --show-drafts
    """

    target: Path
    """Checkpoint that `jaxspec-convert llama` made, or `builtin`, the small model that comes with jaxspec."""
    method: str | None = None
    """DRAFTER[@HEAD][+BUILDER][+CONTROLLER], each with settings if wanted, such as ngram+chain,length=6; the best
    trained head in the checkpoint if not given. `jaxspec methods` lists them."""
    prompt: str | None = None
    """The prompt."""
    prompts: Path | None = None
    """Or a JSONL file of them: {"prompt": ...} or {"turns": [...]} a line (the first turn is taken); or `builtin`."""
    limit: int | None = None
    """Take only the first prompts of the file."""
    sampling: conf.OmitArgPrefixes[SamplingParams] = SamplingParams()
    stop: tuple[str, ...] = ()
    """Strings that end the text."""
    chat: bool = False
    """Put each prompt through the tokenizer's chat template."""
    truncate: Literal["left"] | None = None
    """left: of a prompt that is too long for the model keep the last tokens that leave room for --max-new-tokens; such
    a prompt is refused if not given."""
    stream: bool = False
    """Print the text of a single prompt as it comes."""
    show_drafts: bool = False
    """Colour what was drafted and accepted, drafted and rejected, and added by the target."""
    format: Literal["text", "json"] = "text"
    """json: a line for each prompt, with text, tokens and statistics."""
    batch_size: int | None = None
    """Prompts decoded together, at most 8 if not given; whose text is done makes room for the next."""
    keep_state: bool = False
    """A controller that learns goes on from the prompt that had the same row of the batch before."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    quantize: Literal["int8", "int4"] | None = None
    """Make the target's kernels integers as they are read: half or a quarter of bfloat16's bytes. Its text changes a
    little, and what is drafted still never does. Drafters' weights stay as they are."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
    repetition_penalty: float = 1.0
    """Refused unless 1: the text would depend on more than the target's distribution."""


@dataclasses.dataclass(frozen=True)
class Methods:
    """List what this version can run, and what a checkpoint has heads for.

    For example: jaxspec methods --target tinyllama
    """

    target: Path | None = None
    """Checkpoint whose heads to look for; `builtin` for the one that comes with jaxspec."""


@dataclasses.dataclass(frozen=True)
class Env:
    """Say what jaxspec runs on: versions, devices, memory, caches."""


@dataclasses.dataclass(frozen=True)
class Demo:
    """Decode with the small LLaMA that comes with jaxspec, plainly and with drafts, side by side. Takes a minute."""
