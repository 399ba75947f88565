"""Options of `jaxspec bench`, `sweep` and `calibrate`. Kept apart from the work, so that `--help` need not load JAX."""

import dataclasses
from pathlib import Path
from typing import Literal

from tyro import conf

from jaxspec.decoding.request import SamplingParams
from jaxspec.engine.device_options import Devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What methods are compared on, and how their answers are decoded: the options that `bench` and `sweep` share."""

    target: Path
    """Checkpoint that `jaxspec-convert llama` made, or `builtin`."""
    prompts: Path
    """File of questions: JSONL, {"turns": [...]} or {"prompt": ...} a line, or MT-bench, Spec-Bench, GSM8K, HumanEval,
    XSum, CNN/DM or Alpaca as published, here or by hub id OWNER/NAME[/FILE]; or `builtin`."""
    limit: int | None = None
    """Take only the first questions."""
    shots: int = 0
    """Put this many worked examples before every question: the first questions of the file that have an answer
    ("reference": [...] or "answer": "..."), which are then not asked."""
    sampling: conf.OmitArgPrefixes[SamplingParams] = SamplingParams()
    batch_size: int = 1
    """Questions decoded together."""
    repeats: int = 3
    """Timed passes of every method over every question; times are medians."""
    keep_state: bool = False
    """A controller that learns goes on from the question before, row by row; each timed pass by itself."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    quantize: Literal["int8", "int4"] | None = None
    """Make the target's kernels integers as they are read: half or a quarter of bfloat16's bytes. Its text changes a
    little, and what is drafted still never does. Drafters' weights stay as they are."""
    chat: bool = False
    """Put the turns through the tokenizer's chat template."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Comparison):
    """Time methods against plain decoding on a file of prompts, all in one process and taking turns.

    For example: jaxspec bench --target tinyllama --methods ngram draft-model+chain --prompts questions.jsonl

    Two files of results are held side by side by: jaxspec bench --compare before.json after.json
    """

    methods: tuple[str, ...]
    """Methods DRAFTER[@HEAD][+BUILDER][+CONTROLLER]; `plain`, the reference, always runs too. `all` stands for every
    head as a chain, and every builder and controller that the checkpoint can run."""
    json: Path | None = None
    """Write the results here, and beside it, in OUT.jsonl, every answer as it comes; a killed run resumes from it."""
    temperatures: tuple[float, ...] = ()
    """Run at each of these instead of --temperature, one run after the other: the first writes OUT, the others
    OUT.t0.8.json and the like."""
    batch_sizes: tuple[int, ...] = ()
    """Run with each of these instead of --batch-size, likewise: OUT.b4.json."""
    prices: bool = True
    """Time the pieces of a round after the questions; without, nothing is predicted (modelled speedup, and where the
    time goes), and less is compiled."""
    report: Path | None = None
    """Write a page with everything that came out here, as `jaxspec report` does; needs --json."""
    simulate: str | None = None
    """acceptance=CHANCE,CHANCE,...: random weights of --target's shape (a config.json is enough) and of heads for it,
    whose drafts are accepted by these chances, by position. It tells what a device would give; the text means
    nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eval:
    """Answer a whole suite of questions with one method, as fast as the device allows.

    For example: jaxspec eval --target llama-8b --method eagle --prompts gsm8k.jsonl --batch-size 32 --out answers.jsonl

    Rows of the batch are never idle while questions wait. `bench` is what compares methods, and times them; this one
    answers, scores and resumes. It writes a line an answer to OUT.jsonl as they come, sorted at the end, and OUT.json:
    scores where the suite has them, tau, tokens a second. The same command goes on with a killed run.
    """

    target: Path
    """Checkpoint that `jaxspec-convert llama` made, or `builtin`."""
    prompts: Path
    """File of questions, as for `bench`."""
    method: str | None = None
    """DRAFTER[@HEAD][+BUILDER][+CONTROLLER]; the best trained head of the checkpoint if not given."""
    out: Path | None = None
    """Write the answers to this .jsonl file, the results to the .json beside it, and for HumanEval's scorer
    OUT.samples.jsonl."""
    limit: int | None = None
    """Take only the first questions."""
    shots: int = 0
    """Put this many worked examples before every question, as for `bench`."""
    samples: int = 1
    """Answers to each question, each drawn on its own."""
    skip_long: bool = False
    """Leave out questions that are too long for the model, and name them; else one of them ends the run at once."""
    sampling: conf.OmitArgPrefixes[SamplingParams] = SamplingParams()
    stop: tuple[str, ...] = ()
    """Strings that end an answer."""
    batch_size: int = 8
    """Questions decoded together."""
    keep_state: bool = False
    """A controller that learns goes on from the question that had the same row of the batch before."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    quantize: Literal["int8", "int4"] | None = None
    """Make the target's kernels integers as they are read: half or a quarter of bfloat16's bytes."""
    chat: bool = False
    """Put the turns through the tokenizer's chat template."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare:
    """Hold the results of two `jaxspec bench` runs side by side, without running anything.

    For example: jaxspec bench --compare before.json after.json
    """

    compare: tuple[Path, Path]
    """Two files that --json wrote. The ratio is the second one's number over the first one's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep(Comparison):
    """Run one method over several values of a setting, with other methods beside it, and draw what comes out.

    For example: jaxspec sweep --target builtin --method eagle+chain --over length=1,2,3,4 --against ngram --prompts
    builtin --limit 4 --out sweep.json

    It is a `bench` in which each value is a method, with the same table and JSON. The figure shows speedup, tau and
    harmonic mean over the values.
    """

    method: str
    """The method DRAFTER[@HEAD][+BUILDER][+CONTROLLER] that is varied."""
    over: str
    """SETTING=VALUE,VALUE,...: a setting of the drafter, builder or controller, such as length=1,2,3,4, written
    chain.length=... where several of them have it; or head=NAME,NAME,... for trained heads."""
    against: tuple[str, ...] = ()
    """Methods to compare with; horizontal lines in the figure."""
    out: Path | None = None
    """Write the results to this .json file and the figure to the .svg beside it; in OUT.jsonl every answer as it comes,
    from which a killed sweep resumes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrate:
    """Measure what drafting and verification cost on this device, for `pruned`, `budgeted`, `length-ts` and
    `expected-gain`.

    For example: jaxspec calibrate --target builtin --head eagle

    It times one drafted level at several widths and the target's verification at each tree size that is compiled, and
    keeps the table in the user's cache folder (`jaxspec env` says where). Without it the first run of such a method
    measures the same. Run it again when the machine was busy the first time.
    """

    target: Path
    """Checkpoint that `jaxspec-convert llama` made, or `builtin`."""
    head: str
    """What drafts: a head under CKPT/heads, the path of one, or DRAFTER[@HEAD] such as ngram or eagle@mine."""
    batch_size: int = 1
    """Sequences decoded together, as with the same option of `generate`, `eval` and `bench`: each size has a table."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    quantize: Literal["int8", "int4"] | None = None
    """Make the target's kernels integers as they are read: half or a quarter of bfloat16's bytes. Its text changes a
    little, and what is drafted still never does. Drafters' weights stay as they are."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
