"""Options of `generate`, `chat`, `methods`, `env` and `demo`. This module does not import JAX, so `--help` is fast."""

import dataclasses
from pathlib import Path
from typing import Literal

from tyro import conf

from jaxspec.decoding.request import SamplingParams
from jaxspec.engine.chat_options import ChatOptions
from jaxspec.engine.device_options import Devices


@dataclasses.dataclass(frozen=True)
class Generate:
    """Generate text with speculative decoding.

    For example: jaxspec generate --target tinyllama --prompt "def main():" --max-new-tokens 64 --show-drafts
    """

    target: Path
    """Checkpoint made by `jaxspec-convert llama`, or `builtin`, the small model inside the package."""
    method: str | None = None
    """DRAFTER[@HEAD][+BUILDER][+CONTROLLER]; each part can have settings, as in ngram+chain,length=6. `jaxspec methods`
    lists all parts. Default: the fastest by `jaxspec calibrate --all` if that was run for this checkpoint and device,
    otherwise its best trained head."""
    prompt: str | None = None
    """The prompt."""
    prompts: Path | None = None
    """JSONL file of prompts, or `builtin`. Each line is {"prompt": ...} or {"turns": [...]}, whose first turn is
    used."""
    limit: int | None = None
    """Use only this many prompts from the start of the file."""
    sampling: conf.OmitArgPrefixes[SamplingParams] = SamplingParams()
    stop: tuple[str, ...] = ()
    """Stop strings: generation ends before the first of them."""
    chat: bool = False
    """Format each prompt with the tokenizer's chat template."""
    template: conf.OmitArgPrefixes[ChatOptions] = ChatOptions()
    truncate: Literal["left"] | None = None
    """left: cut a prompt that is too long from the left, so that --max-new-tokens still fit. Default: a prompt that is
    too long is an error."""
    stream: bool = False
    """Print the text of a single prompt while it is generated."""
    show_drafts: bool = False
    """Mark which tokens were drafted and accepted, drafted and rejected, and added by the target."""
    format: Literal["text", "json"] = "text"
    """json: one line per prompt with text, tokens and statistics."""
    batch_size: int | None = None
    """Prompts decoded together. When one is finished, the next takes its row. Default: at most 8."""
    keep_state: bool = False
    """Let a controller keep what it has learnt from the previous prompt in the same row of the batch."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of weights and computation. Default: float32 on a CPU, bfloat16 on an accelerator."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the target's weights while loading, to half or a quarter of bfloat16's size. This changes the target a
    little; decoding stays lossless with respect to it. Weights of drafters are not quantised."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
    repetition_penalty: float = 1.0
    """Only 1, no penalty, is supported."""


@dataclasses.dataclass(frozen=True)
class Chat:
    """Talk with a model.

    Answers stream, and the conversation's cache is kept between turns. An answer takes at most half of the positions
    that the model has left, so that others can follow.

    For example: jaxspec chat --target tinyllama --show-drafts

    Type /help for the commands: /stats, /drafts, /reset and /quit. Ctrl-C stops an answer. Through a pipe, each line is
    a question.
    """

    target: Path
    """Checkpoint made by `jaxspec-convert llama`, or `builtin`."""
    method: str | None = None
    """DRAFTER[@HEAD][+BUILDER][+CONTROLLER]. Default: as for `generate`."""
    template: conf.OmitArgPrefixes[ChatOptions] = ChatOptions()
    sampling: conf.OmitArgPrefixes[SamplingParams] = SamplingParams(max_new_tokens=512)
    show_drafts: bool = False
    """Mark which tokens were drafted and accepted, drafted and rejected, and added by the target; /drafts switches."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of weights and computation. Default: float32 on a CPU, bfloat16 on an accelerator."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the target's weights while loading, to half or a quarter of bfloat16's size."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()


@dataclasses.dataclass(frozen=True)
class Methods:
    """List all drafters, builders and controllers, and the methods that a checkpoint can run.

    For example: jaxspec methods --target tinyllama
    """

    target: Path | None = None
    """Checkpoint whose heads to list, or `builtin`."""


@dataclasses.dataclass(frozen=True)
class Env:
    """Show versions, devices, memory and cache folders."""


@dataclasses.dataclass(frozen=True)
class Demo:
    """Show a text with its drafts, and compare with plain decoding, on the builtin model. Takes a minute."""
