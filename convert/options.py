"""The options of `jaxspec-convert`, one dataclass for each command. This module does not import JAX."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from jaxspec.host.hosts import Hosts
from jaxspec.options.shared import Option

Revision = Annotated[str | None, "Branch, tag or commit of a hub id."]


@dataclasses.dataclass(frozen=True)
class Llama:
    """Convert a LLaMA, or a model with its architecture, into a jaxspec checkpoint.

    SRC is a Hugging Face folder, a hub id, a folder in Meta's or Mistral's format, or a GGUF file, whose tokenizer is
    converted too. Folders and files may be in a bucket. Tensors are streamed, so memory use stays near the size of one
    shard. OUT appears only after everything has been checked and written.

    From a hub id or a bucket into a bucket at most two files of weights are on this disk, and the same command resumes
    after a kill. Several hosts then convert their own files, and need not start together.

    For example: jaxspec-convert llama TinyLlama/TinyLlama-1.1B-Chat-v1.0 tinyllama --dtype bfloat16

    Or: jaxspec-convert llama Llama-3.2-1B-Instruct-Q4_K_M.gguf llama3 --dtype bfloat16
    """

    src: Annotated[str, Option(metavar="SRC", positional=True)]
    """Folder, GGUF file, or hub id such as org/model."""
    out: Annotated[Path, Option(metavar="OUT", positional=True)]
    """Checkpoint to make; must not exist."""
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Dtype of the parameters. Default: the source's; float32 for a GGUF file's quantised tensors."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the weights to half or a quarter of bfloat16's size. The result is a slightly different target. It
    cannot be exported, because the original weights are lost."""
    tokenizer: Path | None = None
    """Folder with a Hugging Face tokenizer, instead of the source's."""
    revision: Revision = None
    hosts: Hosts = Hosts()


@dataclasses.dataclass(frozen=True)
class Head:
    """Convert a published EAGLE, EAGLE-3, DFlash, DSpark or JetSpec head, or Medusa heads, into a jaxspec head.

    SRC is a folder or a hub id. --target is the checkpoint of the head's target. Heads can have the layout of their
    authors, of SpecForge and SGLang, of DeepSpec, or of speculators and vLLM. Other kinds, and unknown settings in
    config.json, are refused by name. Tensors that only repeat the target are left out.

    With --draft-ids or --draft-vocab, SRC is a jaxspec head, and OUT is that head with a smaller draft vocabulary: its
    LM head keeps only the columns of those tokens. It drafts faster, and the text stays the target's.

    For example: jaxspec-convert head yuhuili/EAGLE-llama2-chat-7B llama2/heads/eagle --target llama2

    Or: jaxspec-convert head yuhuili/EAGLE3-LLaMA3.1-Instruct-8B llama3/heads/eagle3 --target llama3

    Or: jaxspec-convert head z-lab/Qwen3-8B-DFlash-b16 qwen3/heads/dflash --target qwen3

    Or: jaxspec-convert head FasterDecoding/medusa-vicuna-7b-v1.3 vicuna/heads/medusa --target vicuna

    Or: jaxspec-convert head llama3/heads/edd llama3/heads/edd-16k --target llama3 --draft-vocab 16384 --data text.jsonl
    """

    src: Annotated[str, Option(metavar="SRC", positional=True)]
    """Folder, or hub id such as org/head. To cut a head: a jaxspec head, or a checkpoint that is a draft model."""
    out: Annotated[Path, Option(metavar="OUT", positional=True)]
    """Head to make, usually CKPT/heads/eagle, CKPT/heads/dflash and the like; must not exist."""
    target: Annotated[Path, Option(metavar="CKPT")]
    """Checkpoint of the head's target, made by `jaxspec-convert llama`."""
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Dtype of the parameters. Default: the source's."""
    taps: str | None = None
    """For an EAGLE-3, DFlash or DSpark head: the target layers, counted from 0, whose inputs it reads, such as 2,16,29.
    Default: those in its config, else those of its authors' code. The output gives them and the reason."""
    rows: Literal["own", "next"] | None = None
    """For a DFlash or DSpark head: the position whose token each row of a block drafts, its own or the next. Default:
    from the config; an error if it is not clear there. With the wrong one nearly every draft is rejected."""
    draft_ids: Annotated[Path | None, Option(metavar="FILE")] = None
    """To cut a head: file with the ids of the draft vocabulary. A JSON list, numbers separated by spaces or lines, or a
    .pt file of FR-Spec. End-of-sequence tokens are always added."""
    draft_vocab: Annotated[int | None, Option(metavar="N")] = None
    """To cut a head: the draft vocabulary is the N most frequent tokens of --data, with the end-of-sequence tokens."""
    data: Path | None = None
    """Text to count for --draft-vocab. Best is text that the target generated (`jaxspec-train generate`). Formats are
    those of training: a folder of text, a text file, JSONL with {"text": ...} or {"messages": ...} a line, ShareGPT's
    JSON, or `stdlib`. In conversations only the answers count."""
    revision: Revision = None


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a jaxspec checkpoint or head in another project's format, bit for bit, in the source's dtype.

    Formats: `hf` is a checkpoint as a Hugging Face folder, with safetensors sharded above 5 GB. `eagle` is an EAGLE
    head with the target's embedding, in its authors' format. `medusa` is Medusa heads as medusa_lm_head.safetensors,
    for TensorRT-LLM and text-generation-inference. `eagle3` is an EAGLE-3 head that EAGLE's own code and SGLang load.
    `dflash` is a DFlash or JetSpec head that DFlash's own code loads. `deepspec` is a DSpark head for DeepSpec, vLLM,
    SGLang and llama.cpp, or a DFlash or EAGLE-3 head for DeepSpec. `speculators` is an EAGLE-3, DFlash or DSpark head
    for speculators and vLLM. The target's embedding and LM head are written too where a format repeats them.

    For example: jaxspec-convert export tinyllama tinyllama-hf --format hf

    Or: jaxspec-convert export tinyllama/heads/eagle tinyllama-eagle --format eagle

    Or: jaxspec-convert export llama3/heads/eagle3 out --format speculators --verifier meta-llama/Llama-3.1-8B-Instruct
    """

    path: Annotated[Path, Option(metavar="PATH", positional=True)]
    """Checkpoint made by `jaxspec-convert llama` (--format hf), or a head such as CKPT/heads/eagle (other formats)."""
    out: Annotated[Path, Option(metavar="OUT", positional=True)]
    """Folder to make; must not exist."""
    format: Literal["hf", "eagle", "eagle3", "dflash", "deepspec", "speculators", "medusa"] = "hf"
    """Format to write; see above."""
    target: Annotated[Path | None, Option(metavar="CKPT")] = None
    """Checkpoint of an EAGLE, EAGLE-3 or DFlash head's target. Default: the checkpoint whose `heads` folder holds the
    head."""
    verifier: str | None = None
    """With --format speculators: the hub id or folder of the target that vLLM should load."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Replace the tokenizer of a jaxspec checkpoint by that of its original model. No weight is read or written.

    For a checkpoint that was converted without a tokenizer, as `jaxspec-convert inspect` shows, or with a wrong one.

    For example: jaxspec-convert tokenizer mistralai/Mistral-7B-Instruct-v0.2 mistral
    """

    src: Annotated[str, Option(metavar="SRC", positional=True)]
    """Folder or GGUF file of the original model, or hub id such as org/model."""
    path: Annotated[Path, Option(metavar="CKPT", positional=True)]
    """Checkpoint to change."""
    revision: Revision = None


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Show what a checkpoint or head is: format, family, shapes, dtype, parameters, heads.

    PATH is a jaxspec checkpoint or head, or what `jaxspec-convert llama` and `head` take: a Hugging Face folder, one in
    Meta's or Mistral's format, a GGUF file, a published head, or a hub id of one of these. Nothing is written.

    For example: jaxspec-convert inspect tinyllama --verify
    """

    path: Annotated[Path, Option(metavar="PATH", positional=True)]
    """What to describe."""
    verify: bool = False
    """Compare all parameter files, also those of heads, with the checksums stored when they were written, and report
    damaged files."""
