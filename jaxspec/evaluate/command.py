"""The commands `jaxspec bench`, `sweep` and `calibrate`: their options. Kept apart from their work, so that
`--help` need not load JAX."""

import dataclasses
from pathlib import Path
from typing import Literal

from tyro import conf

from jaxspec.devices import Devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What methods are compared on, and how their answers are decoded: the options that `bench` and `sweep` share."""

    target: Path
    """Checkpoint that `jaxspec-convert llama` made, or `builtin`."""
    prompts: Path
    """JSONL file of questions: {"turns": [...]} or {"prompt": ...} a line; or `builtin`."""
    limit: int | None = None
    """Take only the first questions."""
    shots: int = 0
    """Put this many worked examples before every question: the first questions of the file that have an answer
    ("reference": [...] or "answer": "..."), which are then not asked."""
    max_new_tokens: int = 128
    """Tokens generated for each turn, at most."""
    temperature: float = 0.0
    """0 is greedy, and then every text is compared with plain decoding's."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that make up this probability; 1: from all."""
    top_k: int = 0
    """Sample from this many likeliest tokens; 0: from all."""
    seed: int = 0
    """Of the sampling."""
    batch_size: int = 1
    """Questions decoded together."""
    repeats: int = 3
    """Timed passes of every method over every question; times are medians."""
    keep_state: bool = False
    """A controller that learns goes on from the question before, row by row; each timed pass by itself."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    chat: bool = False
    """Put the turns through the tokenizer's chat template."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(Comparison):
    """Time methods against plain decoding on a file of prompts, all in one process and taking turns.

    For example: jaxspec bench --target tinyllama --methods ngram draft-model+chain --prompts questions.jsonl
    """

    methods: tuple[str, ...]
    """Methods DRAFTER[@HEAD][+BUILDER][+CONTROLLER]; `plain`, the reference, always runs too."""
    json: Path | None = None
    """Write the results here, and beside it, in OUT.jsonl, every answer as it comes; a killed run resumes from it."""

    def run(self) -> None:
        from jaxspec.evaluate.bench import run

        run(self)


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

    def run(self) -> None:
        from jaxspec.evaluate.sweep import run

        run(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrate:
    """Measure what drafting and verification cost on this device, for the builders `pruned` and `budgeted`.

    For example: jaxspec calibrate --target builtin --head eagle

    It times one drafted level at several widths and the target's verification at each tree size that is compiled, and
    keeps the table in the user's cache folder (`jaxspec env` says where). Without it the first run of such a builder
    measures the same. Run it again when the machine was busy the first time.
    """

    target: Path
    """Checkpoint that `jaxspec-convert llama` made, or `builtin`."""
    head: str
    """What drafts: a head under CKPT/heads, the path of one, or DRAFTER[@HEAD] such as ngram or eagle@mine."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()

    def run(self) -> None:
        from jaxspec.evaluate.calibrate import run

        run(self)
