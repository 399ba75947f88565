"""The options of the commands of `jaxspec-train` that decode with a target. This module does not import JAX."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from jaxspec.decoding.request import SamplingParams
from jaxspec.host.arguments import check_defaults, check_options, check_unused
from jaxspec.options import shared
from jaxspec.options.shared import Devices
from jaxspec.train.options import Data, RunFolder, SaveDtype

TryPrompts = Annotated[
    Path | None,
    'JSONL file of prompts, or a name as in `bench`. Each line is {"prompt": ...} or {"turns": [...]}, whose first '
    "turn is used. Use no prompts of later measurements. Default: pieces of the data that is not held out.",
]
NewTokens = Annotated[int, "Largest number of generated tokens."]
Objectives = Literal["modelled", "measured"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Options of the commands that decode with the target."""

    target: shared.Target
    data: Data = Data()
    prompt_tokens: Annotated[int, "Largest number of tokens of a prompt cut from the data."] = 64
    dtype: shared.Dtype = None
    devices: Devices = Devices()


def _check_prompts(options: "Generate | Calibrator | SkipSearch", prompts: Path | None = None) -> None:
    """Raises ValueError for an option of prompts that are cut from the data, where they come from elsewhere."""
    if options.chat:
        check_unused(options, "--chat", "prompt_tokens")
    if prompts is not None:
        check_unused(options, "--prompts", "prompt_tokens")
        check_unused(options.data, "--prompts", "data", "strict")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(Decoding):
    """Generate text with a target, as training data for its heads.

    The first tokens of a text are greedy, and the rest is sampled. A text ends at the end of the target's context at
    the latest. OUT is JSONL with {"text": ..., "prompt": ..., "complete": ...} per line, and appears only when it is
    complete. The same command resumes a killed run from OUT.part and writes the same bytes.

    For example: jaxspec-train generate --target builtin --out texts.jsonl --samples 64
    """

    out: Path
    """File to make; must not exist."""
    prompts: TryPrompts = None
    chat: bool = False
    """Generate the assistant's answers, with the tokenizer's chat template: to the prompts of --prompts, or to first
    turns of the conversations in --data. OUT then has {"messages": ..., "complete": ...} per line."""
    samples: int = 1000
    """Texts to generate: at most one per prompt of --prompts."""
    self_prompts: int | None = None
    """Instead of --samples: let the target write this many user turns itself, after its chat template's user header
    (Magpie), and answer them. Turns without an end, and answers that repeat others, are left out."""
    max_loops: float = 0.1
    """With --self-prompts: largest share of answers that loop."""
    exclude: tuple[str, ...] = ()
    """Question files, as in `bench`. Texts that share 13 words in a row with one of them are left out."""
    method: str | None = None
    """Method of decoding. It changes the speed, and not the distribution of the texts. `jaxspec methods` lists the
    parts. Default: as in `jaxspec generate`."""
    sampling: SamplingParams = SamplingParams(max_new_tokens=256, temperature=1.0)
    greedy_tokens: int = 8
    """Number of greedy tokens at the start of a text, at any temperature."""
    batch_size: int = 16
    """Texts decoded together."""

    def __post_init__(self) -> None:
        check_options(self, lambda value: value >= 1, "be at least 1", "samples", "prompt_tokens", "batch_size")
        check_options(self, lambda value: value is None or value >= 1, "be at least 1", "self_prompts")
        check_options(self, lambda value: 0 <= value <= 1, "be from 0 to 1", "max_loops")
        check_options(self, lambda value: value >= 0, "not be below 0", "greedy_tokens")
        check_options(self.sampling, lambda value: value >= 0, "not be below 0", "seed")
        check_options(self.sampling, lambda value: value >= 1, "be at least 1", "max_new_tokens")
        if self.self_prompts is None:
            check_defaults(self, "--self-prompts", "max_loops")
        else:
            check_unused(self, "--self-prompts", "prompts", "samples", "prompt_tokens")
            check_unused(self.data, "--self-prompts", "data", "strict")
        _check_prompts(self, self.prompts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrator(Decoding):
    """Train the predictor of `cali-ts` for a trained head: whether the target accepts the newest draft.

    It collects its own labels by decoding with that head. The same command resumes a killed run.

    For example: jaxspec-train calibrator --target tinyllama --head eagle
    """

    head: str
    """Trained head: its name in the checkpoint, or its folder."""
    out: Path | None = None
    """Predictor to make. Default: `calibrator` in the head's folder, where `cali-ts` looks for it."""
    run_dir: RunFolder = None
    chat: bool = False
    """Decode the assistant's answers to the first turns of the conversations in --data, with the tokenizer's chat
    template."""
    samples: int = 400
    """Texts to decode. Their prompts come from data that is not held out."""
    max_new_tokens: NewTokens = 128
    inputs: Literal["hidden", "both", "top-probability"] = "hidden"
    """Inputs of the predictor. hidden: hidden states of target and drafter, as in the paper. top-probability: the log
    of the drafter's largest probability. both: all of these."""
    length: int = 10
    """Tokens of a drafted chain, at most as many as the head can draft. The predictor has separate parameters for the
    first ten positions."""
    batch_size: int = 16
    """Texts decoded together."""
    steps: int = 2000
    """Optimizer steps, rounded up to a multiple of 50."""
    rounds: int = 64
    """Drafted chains per training step."""
    learning_rate: float = 1e-3
    """Peak learning rate; it falls to a tenth of this by a cosine schedule."""
    seed: int = 0
    """Seed of prompt selection, initial weights and training order."""
    save_dtype: SaveDtype = "bfloat16"

    def __post_init__(self) -> None:
        counts = ("samples", "prompt_tokens", "max_new_tokens", "length", "batch_size", "steps", "rounds")
        check_options(self, lambda value: value >= 1, "be at least 1", *counts)
        check_options(self, lambda value: value >= 0, "not be below 0", "seed")
        _check_prompts(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkipSearch(Decoding):
    """Search which attention and MLP blocks a model can leave out while drafting (Draft & Verify).

    Nothing is trained. The search tries sets of blocks on a few prompts and minimises the time per verified token by
    Bayesian optimisation. It writes the best set, a small JSON file, where `layer-skip` finds it. Two tables compare
    it with simpler choices of as many blocks, and with the best sets of fewer trials; RUN gets figures. The same
    command resumes a killed search. To extend a finished one, repeat it with its --run, more --trials, another --out.

    For example: jaxspec-train skip-search --target tinyllama --data ~/src --trials 300
    """

    out: Path | None = None
    """Skip set to make; must not exist. Default: TARGET/heads/layer-skip."""
    run_dir: RunFolder = None
    prompts: TryPrompts = None
    chat: bool = False
    """Try sets on the assistant's answers, with the tokenizer's chat template: to the prompts of --prompts, or to the
    first turns of the conversations in --data."""
    trials: int = 300
    """Sets to try. With 80 blocks, the paper reached a speedup of 1.35 after 200 trials and 1.57 after 1000."""
    objective: Objectives = "modelled"
    """modelled: compute the time from the rounds of decoding and the costs of their pieces, which are measured once.
    measured: use wall-clock time, which other work on the machine disturbs."""
    method: str = "layer-skip+adaptive"
    """Method that drafts in each trial, with the builder and controller that will be used with the set."""
    samples: int = 8
    """Prompts per trial."""
    max_new_tokens: NewTokens = 48
    seed: int = 0
    """Seed of prompt selection and of the tried sets."""

    def __post_init__(self) -> None:
        counts = ("trials", "samples", "prompt_tokens", "max_new_tokens")
        check_options(self, lambda value: value >= 1, "be at least 1", *counts)
        check_options(self, lambda value: value >= 0, "not be below 0", "seed")
        _check_prompts(self, self.prompts)
