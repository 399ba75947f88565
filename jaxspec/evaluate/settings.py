"""Options of `jaxspec bench`, `sweep` and `calibrate`. This module does not import JAX, so
`--help` is fast."""

import dataclasses
from pathlib import Path
from typing import Literal

from tyro import conf

from jaxspec.decoding.request import SamplingParams
from jaxspec.engine.chat_options import ChatOptions
from jaxspec.engine.device_options import Devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options that `bench` and `sweep` share: the questions, and how answers are decoded."""

    target: Path
    """Checkpoint made by `jaxspec-convert llama`, or `builtin`."""
    prompts: Path
    """File of questions, or `builtin`. A file is JSONL with {"turns": [...]} or {"prompt": ...} per line; or MT-bench,
    Spec-Bench, GSM8K, HumanEval, XSum, CNN/DM or Alpaca as published, as a path or as a hub id OWNER/NAME[/FILE]."""
    limit: int | None = None
    """Use only this many questions from the start of the file."""
    shots: int = 0
    """Put this many worked examples before every question. They are the first questions of the file with an answer
    ("reference": [...] or "answer": "..."), and are not asked themselves."""
    sampling: conf.OmitArgPrefixes[SamplingParams] = SamplingParams()
    batch_size: int = 1
    """Questions decoded together."""
    repeats: int = 3
    """Timed passes of every method over all questions. Reported times are medians."""
    keep_state: bool = False
    """Let a controller keep what it has learnt from the previous question in the same row. Each timed pass starts
    anew."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of weights and computation. Default: float32 on a CPU, bfloat16 on an accelerator."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the target's weights while loading, to half or a quarter of bfloat16's size. This changes the target a
    little; decoding stays lossless with respect to it. Weights of drafters are not quantised."""
    chat: bool = False
    """Format the turns with the tokenizer's chat template."""
    template: conf.OmitArgPrefixes[ChatOptions] = ChatOptions()
    devices: conf.OmitArgPrefixes[Devices] = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Comparison):
    """Compare the speed of methods with plain decoding on a file of prompts.

    All methods run in one process and alternate.

    For example: jaxspec bench --target tinyllama --methods ngram draft-model+chain --prompts questions.jsonl

    Compare two result files with: jaxspec bench --compare before.json after.json
    """

    methods: tuple[str, ...]
    """Methods DRAFTER[@HEAD][+BUILDER][+CONTROLLER]. `plain`, the reference, always runs too. `all` means every head as
    a chain, and every builder and controller that the checkpoint can run."""
    json: Path | None = None
    """Write the results to this file. OUT.jsonl beside it gets every answer at once; a killed run resumes from it."""
    temperatures: tuple[float, ...] = ()
    """Run once at each of these temperatures, instead of --temperature. The first run writes OUT.json, the others
    OUT.t0.8.json and so on."""
    batch_sizes: tuple[int, ...] = ()
    """Run once with each of these batch sizes, instead of --batch-size. Output files are named like OUT.b4.json."""
    prices: bool = True
    """Time the pieces of a round after the questions. --no-prices compiles less, but then nothing is predicted: neither
    the modelled speedup nor the breakdown of the time."""
    report: Path | None = None
    """Write an HTML report to this file, as `jaxspec report` does. Needs --json."""
    simulate: str | None = None
    """acceptance=P0,P1,...: use random weights, and accept the likeliest draft at position i with probability Pi; other
    nodes of a tree follow from that. --target gives the shape; a config.json is enough. This predicts the speedup on a
    device; the text is meaningless."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eval:
    """Answer a whole suite of questions with one method.

    For example: jaxspec eval --target llama-8b --method eagle --prompts gsm8k.jsonl --batch-size 32 --out answers.jsonl

    When a row of the batch finishes an answer, it takes the next question. OUT.jsonl gets one line per answer, in order
    of completion, and is sorted at the end. OUT.json gets tau, tokens per second, and scores where the suite has
    reference answers. The same command resumes a killed run. To compare and time methods, use `bench`.
    """

    target: Path
    """Checkpoint made by `jaxspec-convert llama`, or `builtin`."""
    prompts: Path
    """File of questions, as in `bench`."""
    method: str | None = None
    """DRAFTER[@HEAD][+BUILDER][+CONTROLLER]. Default: as for `generate`."""
    out: Path | None = None
    """Write the answers to this .jsonl file and the results to the .json file beside it. For HumanEval, the scorer's
    input goes to OUT.samples.jsonl."""
    limit: int | None = None
    """Use only this many questions from the start of the file."""
    shots: int = 0
    """Put this many worked examples before every question, as in `bench`."""
    samples: int = 1
    """Independent answers to each question."""
    skip_long: bool = False
    """Skip questions that are too long for the model, and report them. Default: such a question is an error."""
    sampling: conf.OmitArgPrefixes[SamplingParams] = SamplingParams()
    stop: tuple[str, ...] = ()
    """Strings that end an answer."""
    batch_size: int = 8
    """Questions decoded together."""
    keep_state: bool = False
    """Let a controller keep what it has learnt from the previous question in the same row of the batch."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of weights and computation. Default: float32 on a CPU, bfloat16 on an accelerator."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the target's weights while loading, to half or a quarter of bfloat16's size."""
    chat: bool = False
    """Format the turns with the tokenizer's chat template."""
    template: conf.OmitArgPrefixes[ChatOptions] = ChatOptions()
    devices: conf.OmitArgPrefixes[Devices] = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare the results of two `jaxspec bench` runs, without running anything.

    For example: jaxspec bench --compare before.json after.json
    """

    compare: tuple[Path, Path]
    """Two files written by --json. Ratios are second file / first file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep(Comparison):
    """Benchmark one method with several values of a setting, and plot the results.

    For example: jaxspec sweep --target builtin --method eagle+chain --over length=1,2,3,4 --against ngram --prompts
    builtin --limit 4 --out sweep.json

    It runs as `bench` does, with one method per value, and gives the same table and JSON. The figure shows speedup, tau
    and harmonic mean over the values.
    """

    method: str
    """The method DRAFTER[@HEAD][+BUILDER][+CONTROLLER] whose setting varies."""
    over: str
    """SETTING=VALUE,VALUE,...: a setting of the drafter, builder or controller, such as length=1,2,3,4. If several
    parts have a setting of that name, write PART.SETTING, as in chain.length=1,2. head=NAME,NAME,... compares trained
    heads."""
    against: tuple[str, ...] = ()
    """Other methods to compare with. The figure shows them as horizontal lines."""
    out: Path | None = None
    """Write the results to this .json file, and the figure to the .svg file beside it. OUT.jsonl gets every answer at
    once; a killed sweep resumes from it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrate:
    """Measure what drafting and verification cost on this device, for `pruned`, `budgeted`, `length-ts` and
    `expected-gain`.

    For example: jaxspec calibrate --target builtin --head eagle

    It times one drafted level at several widths, and the target's verification at each compiled tree size. The table is
    kept in the user's cache folder, which `jaxspec env` shows. Without a table, the first run of such a method measures
    one. Calibrate again if the machine was busy the first time.

    With --all, it measures instead the speed of every method that `bench --methods all` means, on a few questions.
    From then on, commands without --method use the fastest at this batch size.
    """

    target: Path
    """Checkpoint made by `jaxspec-convert llama`, or `builtin`."""
    head: str | None = None
    """Drafter to measure: a head in CKPT/heads, the path of a head, or DRAFTER[@HEAD] such as ngram or eagle@mine."""
    all: bool = False
    """Measure the speed of all methods, greedy, and print and keep the table. Takes minutes."""
    prompts: Path = Path("builtin")
    """File of questions for --all, as in `bench`."""
    limit: int | None = None
    """Use only this many questions. Default: 8, or one whole batch."""
    max_new_tokens: int = 64
    """Tokens of each answer for --all."""
    batch_size: int = 1
    """Sequences decoded together. Each batch size has its own table, which `generate`, `eval` and `bench` look up."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of weights and computation. Default: float32 on a CPU, bfloat16 on an accelerator."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the target's weights while loading, to half or a quarter of bfloat16's size. This changes the target a
    little; decoding stays lossless with respect to it. Weights of drafters are not quantised."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
