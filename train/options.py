"""The options of `jaxspec-train`, one dataclass for each command that trains. This module does not import JAX."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from jaxspec.host.arguments import check_defaults, check_options
from jaxspec.options.shared import ChatOptions, Devices, Option
from jaxspec.train import hyperparameters as hyper

STDLIB = "stdlib"
RunFolder = Annotated[
    Path | None,
    Option(name="run"),
    "Folder of the run: checkpoints, metrics and figures. The same command resumes from it. Default: OUT.run.",
]
SaveDtype = Annotated[Literal["float32", "bfloat16"], "Dtype of the stored parameters."]
Taps = Annotated[tuple[int, ...] | None, Option(metavar="INT [INT ...]")]


@dataclasses.dataclass(frozen=True)
class Data(ChatOptions):
    """Training data."""

    data: Path = Path(STDLIB)
    """Folder of text, such as a source tree; or a file with plain text, JSONL with {"text": ...} or {"messages": ...}
    per line, or ShareGPT's JSON, or Parquet with such columns; all but Parquet can be gzipped. Or `stdlib`, the source
    of this Python's standard library. One file or record in 40 is held out for measurements."""
    strict: bool = False
    """Stop at the first bad record. Default: report bad records and skip them."""


@dataclasses.dataclass(frozen=True)
class DataMixture(Data):
    """Training data of a head."""

    open_data: Path | None = None
    """Open text to mix with generated text, given as in --data; --data is then the output of `jaxspec-train generate`,
    of which nothing is held out."""
    generated_share: float = 0.5
    """With --open-data: share of training windows from generated text, rounded so that each kind has at least one. The
    rest is open text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, lambda share: 0 < share < 1, "be between 0 and 1", "generated_share")
        if self.open_data is None:
            check_defaults(self, "--open-data", "generated_share")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """Options that all heads share."""

    target: Path
    """Checkpoint to train a head for."""
    out: Path | None = None
    """Head to make; must not exist. Default: TARGET/heads/NAME."""
    run_dir: RunFolder = None
    init: str | None = None
    """Head to continue from, for this target: a name in TARGET/heads, a path, or a hub id. It needs the options of its
    shape, such as --layers, and keeps its draft vocabulary. Default: a new head."""
    context: int | None = None
    """Tokens of a training window. Default: the target's context, but at most 2048."""
    cache_features: Path | None = None
    """Folder for the target's features, so that only the first epoch computes them. Use it for small runs: a token
    takes the hidden size times 2 or 4 bytes, and as much for each further layer that the head reads. All hosts must
    share the folder."""
    save_dtype: SaveDtype = "bfloat16"
    devices: Devices = Devices()
    data: DataMixture = DataMixture()
    recipe: hyper.Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle(HeadSettings):
    """Train an EAGLE head: one decoder layer that predicts the target's next feature.

    The defaults are the paper's. The target is frozen and runs inside each step.

    For example: jaxspec-train eagle --target tinyllama --data sharegpt.json --steps 20000
    """

    objective: hyper.EagleObjective = hyper.EagleObjective()
    bias: bool = False
    """Add a bias to `fc`, the layer that fuses token and feature, as in EAGLE's first heads. vLLM supports no bias."""
    inputs: Literal["shifted", "unshifted", "feature", "token"] = "shifted"
    """What the head reads, for the paper's ablation. shifted: a feature and the token after it, which is EAGLE.
    unshifted: a feature and its own token. feature, token: only one of the two. Only shifted heads can be exported."""
    recipe: hyper.Recipe = hyper.Recipe(steps=20_000, batch_size=8, learning_rate=3e-5, weight_decay=0.01, clip=0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3(HeadSettings):
    """Train an EAGLE-3 head: one decoder layer over features of three of the target's layers, and a small LM head.

    The head trains on its own drafts, seven steps deep. It learns the target's distribution over the draft vocabulary:
    the most frequent tokens among those that count in the loss.

    For example: jaxspec-train eagle3 --target tinyllama --data generated.jsonl --steps 20000
    """

    objective: hyper.Eagle3Objective = hyper.Eagle3Objective()
    draft_vocab: int = 32_000
    """Size of the draft vocabulary, at most that of the target's vocabulary."""
    taps: Taps = None
    """Target layers, counted from 0, whose inputs the head reads. Default: 2, n/2 and n - 3 of n layers."""
    tap_norm: Literal["none", "each", "all"] = "none"
    """RMSNorm of these inputs before the head joins them: of `each`, or of `all` as one vector. EAGLE's own code cannot
    load such a head. `each` is for targets whose layers have inputs of very different size."""
    width: int | None = None
    """Width of the head's residual stream; it then learns an embedding of its own. Default: the target's."""
    window: int = 0
    """Sliding window: positions that a token of the head sees, its own included. 0: all."""
    recipe: hyper.Recipe = hyper.Recipe(steps=20_000, batch_size=8, learning_rate=1e-4, weight_decay=0.01, clip=0.5)

    def __post_init__(self) -> None:
        check_options(self, lambda value: value >= 1, "be at least 1", "draft_vocab")
        check_options(self, lambda value: value >= 0, "be at least 0", "window")
        least = (steps := self.objective.draft_steps) + 2
        holds = lambda context: context is None or context >= least
        check_options(self, holds, f"be at least {least} for --draft-steps {steps}", "context")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dflash(HeadSettings):
    """Train a block head: a few layers over features of the target that draft a block of tokens in one pass.

    It drafts with the target's LM head. Train long blocks: decoding can use shorter ones. The defaults are DFlash's.
    JetSpec: --causal --goal forward-kl --weighting uniform. DSpark: --rows next --markov-rank 256 --confidence markov
    --goal dspark --decay-scale 4.

    For example: jaxspec-train dflash --target tinyllama --data generated.jsonl --steps 20000
    """

    objective: hyper.DflashObjective = hyper.DflashObjective()
    layers: int = 5
    """Decoder layers of the head."""
    block: int = 16
    """Rows of a block. The first one has a known token: the head drafts one token less, or with --rows next as many."""
    rows: Literal["own", "next"] = "own"
    """The position whose token a row drafts: its own, as in DFlash and JetSpec, or the next, as in DSpark."""
    causal: bool = False
    """A row sees its block only up to itself, as in JetSpec."""
    taps: Taps = None
    """Target layers, counted from 0, whose inputs the head reads. Default: as many as it has layers, spread evenly."""
    mask_token: int | None = None
    """Id of the token that stands for unknown tokens in a block. Default: the last id of the vocabulary."""
    markov_rank: int = 0
    """Rank of a Markov term (DSpark), which corrects each drafted token's logits by the token before it. 0: none, as in
    DFlash."""
    confidence: Literal["none", "hidden", "markov"] = "none"
    """Train a confidence head (DSpark), which estimates whether the next draft is accepted, from the row's hidden
    state, or from it and the Markov term's embedding of the token before."""
    recipe: hyper.Recipe = hyper.Recipe(steps=20_000, batch_size=8, learning_rate=6e-4, weight_decay=0.01, clip=1.0)

    def __post_init__(self) -> None:
        check_options(self, lambda value: value >= 1, "be at least 1", "layers")
        check_options(self, lambda value: value >= 2, "be at least 2", "block")
        check_options(self, lambda value: value >= 0, "be at least 0", "markov_rank")
        if self.confidence == "markov" and not self.markov_rank:
            raise ValueError("--confidence markov reads the Markov term: give --markov-rank, or --confidence hidden")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftModel(HeadSettings):
    """Distil a small LLaMA from a target, as its draft model.

    For example: jaxspec-train draft-model --target tinyllama --data ~/src --layers 2 --hidden-size 256

    The defaults make the vanilla draft model (VDM) of EDD's paper: one layer of the target's shape, trained like EDD.
    To keep it beside another draft model, name it: with --out tinyllama/heads/vdm, `draft-model@vdm` decodes with it.
    """

    layers: int = 1
    """Decoder layers."""
    hidden_size: int | None = None
    """Width of the residual stream. Default: the target's; embedding and LM head then start as the target's, too."""
    objective: hyper.Distillation = hyper.Distillation()
    recipe: hyper.Recipe = hyper.Recipe(steps=20_000, batch_size=8, learning_rate=1e-4)

    def __post_init__(self) -> None:
        check_options(self, lambda value: value >= 1, "be at least 1", "layers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyExit(HeadSettings):
    """Train an early exit (EESD): a decoder layer, norm and LM head after the target's first layers.

    Training loads and runs only these layers and the exit. The defaults are the paper's, for 100,000 samples.

    For example: jaxspec-train early-exit --target tinyllama --data generated.jsonl --open-data ~/src
    """

    first: int | None = None
    """Target layers before the exit. Default: 6.5 % of the layers, as in the paper, but at least one."""
    exit_layers: int = 1
    """Decoder layers of the exit. 0: only a norm and an LM head, the paper's ablation."""
    recipe: hyper.Recipe = hyper.Recipe(steps=6250, batch_size=64, learning_rate=1e-3)

    def __post_init__(self) -> None:
        if self.cache_features is not None:
            raise ValueError("--cache-features has no use here: an early exit trains without the target's features")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edd(HeadSettings):
    """Train an EDD head: a one-layer LLaMA that reads the target's hidden states of verified tokens as a soft prompt.

    It starts from the target's own weights. The defaults are the paper's; set --steps for your text.

    For example: jaxspec-train edd --target tinyllama --data sharegpt.json --steps 20000
    """

    objective: hyper.BlockObjective = hyper.BlockObjective()
    tap: int | None = None
    """Target layer, counted from 0, whose output the head reads. Default: the fourth-to-last."""
    recipe: hyper.Recipe = hyper.Recipe(steps=20_000, batch_size=8, learning_rate=1e-4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Medusa(HeadSettings):
    """Train Medusa heads. They all read the same feature, and each predicts one token further ahead.

    This is Medusa-1: the target is frozen. The loss is the cross-entropy of the text's tokens.

    For example: jaxspec-train medusa --target tinyllama --data sharegpt.json --steps 20000
    """

    heads: int = 5
    """Number of heads, which limits the length of a drafted path. Each head has a matrix of the LM head's size."""
    decay: float = 0.8
    """Weight of a head's loss relative to the head before."""
    recipe: hyper.Recipe = hyper.Recipe(steps=20_000, batch_size=8, learning_rate=1e-3)

    def __post_init__(self) -> None:
        check_options(self, lambda value: value >= 1, "be at least 1", "heads")
        check_options(self, lambda value: 0 < value <= 1, "be above 0 and at most 1", "decay")
        holds = lambda context: context is None or context >= self.heads + 2
        check_options(self, holds, f"be at least {self.heads + 2} for {self.heads} heads", "context")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSkip(HeadSettings):
    """Train the blocks that remain when layers are skipped for drafting (Draft & Verify, Appendix E).

    Leaving out many blocks makes drafts fast but bad. Training the remaining blocks to imitate the whole target makes
    them good again. The head stores the skip set and its own weights. By default it is
    TARGET/heads/layer-skip-trained; decode with `layer-skip@layer-skip-trained`.

    With --context 512 the default length of training is the paper's best, 60M tokens; other defaults are EDD's.

    For example: jaxspec-train layer-skip --target tinyllama --aggressive --data ~/src --context 512
    """

    objective: hyper.BlockObjective = hyper.BlockObjective(block_max=12)
    skip_set: Annotated[Path | None, Option(name="set")] = None
    """Skip set to train. Default: TARGET/heads/layer-skip."""
    aggressive: bool = False
    """Select a larger skip set: it leaves out the two shares below, and the trials of a search rank the blocks."""
    search: Path | None = None
    """With --aggressive: folder of the search's run. Default: TARGET/heads/layer-skip.run."""
    attention_share: float = 0.75
    """With --aggressive: share of attention blocks to leave out. The default is the paper's for LLaMA-2-13B."""
    mlp_share: float = 0.325
    """With --aggressive: share of MLP blocks to leave out. The default is the paper's, too."""
    recipe: hyper.Recipe = hyper.Recipe(steps=14_650, batch_size=8, learning_rate=1e-4)

    def __post_init__(self) -> None:
        check_options(self, lambda value: 0 <= value <= 1, "be from 0 to 1", "attention_share", "mlp_share")
        if self.aggressive and self.skip_set is not None:
            raise ValueError("--aggressive selects a set from the trials of a search, and --set names one: give one")
        if not self.aggressive:
            check_defaults(self, "--aggressive", "search", "attention_share", "mlp_share")
        if self.cache_features is not None:
            raise ValueError("--cache-features stores only the target's last features, and this head reads all layers")


@dataclasses.dataclass(frozen=True)
class Lm:
    """Train a small LLaMA from scratch, tokenizer included, on text.

    OUT is a checkpoint and appears only when it is complete. The same seed gives the same bits, also in a resumed run.

    For example: jaxspec-train lm small --data ~/notes --steps 1000
    """

    out: Annotated[Path, Option(metavar="OUT", positional=True)]
    """Checkpoint to make; must not exist."""
    data: Data = Data()
    layers: int = 4
    """Decoder layers."""
    hidden_size: int = 128
    """Width of the residual stream."""
    head_dim: int = 32
    """Width of an attention head."""
    vocab_size: int = 1024
    """Vocabulary size of the byte-level BPE, including two special tokens."""
    tied: bool = False
    """Share the weights of embedding and LM head."""
    context: int = 256
    """Tokens of a training window, and the model's context length."""
    layer_dropout: float = 0.0
    """Probability that a step leaves out the last layer, falling to 0 towards the first (LayerSkip's schedule). The
    model can then draft with early exits and skipped layers."""
    save_dtype: SaveDtype = "float32"
    run_dir: RunFolder = None
    recipe: hyper.Recipe = hyper.Recipe(steps=200, batch_size=16, learning_rate=2e-3)

    def __post_init__(self) -> None:
        check_options(self, lambda value: 0 <= value < 1, "be from 0 to below 1", "layer_dropout")
