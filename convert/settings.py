"""Options of `jaxspec-convert`. Kept apart from the work, so that `--help` need not load JAX."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro import conf

from jaxspec.engine.device_options import Hosts


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
    quantize: Literal["int8", "int4"] | None = None
    """Make the kernels integers: half or a quarter of bfloat16's bytes, and a target that says something a little
    different, whose own plain decoding is then what drafts must not change. It cannot be undone: no export."""
    tokenizer: Path | None = None
    """Folder with a Hugging Face tokenizer to take instead of the source's; LLaMA 3 in Meta's format needs one."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    hosts: conf.OmitArgPrefixes[Hosts] = Hosts()


@dataclasses.dataclass(frozen=True)
class Head:
    """Convert a published head of EAGLE-1, EAGLE-2 or EAGLE-3, or Medusa heads, into a head of jaxspec's.

    SRC is a folder or a hub id, and --target the checkpoint that the head was trained for. EAGLE-3 heads are read in
    the layouts of EAGLE's authors, SpecForge and SGLang, speculators and vLLM. What in SRC only repeats the target is
    left out. OUT appears when everything has been checked and written, or not at all.

    For example: jaxspec-convert head yuhuili/EAGLE-llama2-chat-7B llama2/heads/eagle --target llama2

    Or: jaxspec-convert head yuhuili/EAGLE3-LLaMA3.1-Instruct-8B llama3/heads/eagle3 --target llama3

    Or: jaxspec-convert head FasterDecoding/medusa-vicuna-7b-v1.3 vicuna/heads/medusa --target vicuna
    """

    src: Annotated[conf.Positional[str], conf.arg(metavar="SRC")]
    """Folder, or hub id such as org/head."""
    out: Annotated[conf.Positional[Path], conf.arg(metavar="OUT")]
    """Head to make, usually CKPT/heads/ and eagle, eagle3 or medusa; must not exist."""
    target: Annotated[Path, conf.arg(metavar="CKPT")]
    """Checkpoint that `jaxspec-convert llama` made of the head's target."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Dtype of the parameters; the source's if not given."""
    taps: str | None = None
    """Of an EAGLE-3 head: the target's layers, counted from 0, whose inputs it reads, such as 2,16,29. By default those
    that its config lists, by the convention of its layout, which is said; else those of EAGLE's own code."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a jaxspec checkpoint, or a head, in the format that others read: the same bits in the source's dtype.

    A checkpoint's target goes into a Hugging Face folder (--format hf), its safetensors sharded above 5 GB. An EAGLE
    head goes, with the target's embedding, into the format that its authors publish (--format eagle), and Medusa heads
    into theirs, medusa_lm_head.safetensors (--format medusa). An EAGLE-3 head goes into what EAGLE's own code and
    SGLang load (--format eagle3), or what speculators and vLLM load (--format speculators).

    For example: jaxspec-convert export tinyllama tinyllama-hf --format hf

    Or: jaxspec-convert export tinyllama/heads/eagle tinyllama-eagle --format eagle

    Or: jaxspec-convert export llama3/heads/eagle3 out --format speculators --verifier meta-llama/Llama-3.1-8B-Instruct
    """

    path: Annotated[conf.Positional[Path], conf.arg(metavar="PATH")]
    """Checkpoint that `jaxspec-convert llama` made; with any format but hf a head, such as CKPT/heads/eagle."""
    out: Annotated[conf.Positional[Path], conf.arg(metavar="OUT")]
    """Folder to make; must not exist."""
    format: Literal["hf", "eagle", "eagle3", "speculators", "medusa"] = "hf"
    """hf for a checkpoint, speculators for EAGLE-3 heads, the others for heads of that kind."""
    target: Annotated[Path | None, conf.arg(metavar="CKPT")] = None
    """Checkpoint of an EAGLE or EAGLE-3 head's target; by default the one under whose `heads` it lies."""
    verifier: str | None = None
    """What --format speculators calls the target: the hub id or folder that vLLM is to load."""


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Say what a checkpoint or a head is: format, family, shapes, dtype, parameters, heads.

    PATH is a Hugging Face folder, a Meta folder, a published EAGLE head or Medusa heads, or a checkpoint or head of
    jaxspec's. Nothing is written.

    For example: jaxspec-convert inspect tinyllama --verify
    """

    path: Annotated[conf.Positional[Path], conf.arg(metavar="PATH")]
    """Folder to look at."""
    verify: bool = False
    """Compare the files of parameters, those of the heads too, with the checksums that were kept when they were
    written, and name one that is damaged."""
