"""Options of the commands that train a head, and of their losses."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro import conf

from jaxspec.engine.device_options import Devices
from jaxspec.train.settings.data import DataMixture
from jaxspec.train.settings.recipe import Recipe
from jaxspec.train.settings.spelling import require

Dtype = Literal["float32", "bfloat16"]
Goal = Literal["forward-kl", "cross-entropy"]


@dataclasses.dataclass(frozen=True)
class Where:
    """The target, and where the head and its run are stored."""

    target: Path
    """Checkpoint to train a head for."""
    out: Path | None = None
    """Head to make; must not exist. Default: TARGET/heads/NAME."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run, with checkpoints, metrics and a figure. The same command resumes a killed run bit-exactly from
    its last checkpoint. Default: OUT.run."""
    context: int | None = None
    """Tokens of a training window. Default: the target's context, but at most 2048."""
    cache_features: Path | None = None
    """Folder for the target's features, so that only the first epoch computes them. Use it for small runs: a token
    takes the hidden size times 2 or 4 bytes. EDD takes twice as much, because it reads another layer too, and EAGLE-3
    four times as much, because it reads three. DFlash reads one layer for each of its own. All hosts must share the
    folder."""
    save_dtype: Dtype = "bfloat16"
    """Dtype of the stored head."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """Options that all heads share."""

    where: Annotated[conf.OmitArgPrefixes[Where], conf.arg(name="")]  # in the first box of --help
    data: conf.OmitArgPrefixes[DataMixture] = DataMixture()
    recipe: conf.OmitArgPrefixes[Recipe]


@dataclasses.dataclass(frozen=True)
class EagleObjective:
    """EAGLE's loss."""

    cross_entropy: float = 0.1
    """Weight of the cross-entropy. The SmoothL1 regression loss has weight 1."""
    noise: float = 0.1
    """Input features get noise from U(-noise, noise)."""
    noise_scale: Literal["constant", "length"] = "constant"
    """constant: as in the paper. length: noise times 512 / tokens of a window, as in EAGLE's published code."""

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 0, "not be below 0", "cross_entropy", "noise")


@dataclasses.dataclass(frozen=True)
class Distillation:
    """Loss of a drafter that learns the distribution of the next token."""

    goal: Goal = "forward-kl"
    """forward-kl: KL(target || draft). cross-entropy: that of the tokens of the text."""
    teacher_temperature: float = 1.0
    """Divides the target's logits before the KL, but not the draft's. 1: the target's own distribution, as in the
    papers. Below 1: a sharper distribution, for greedy decoding. Greedy decoding always selects the target's first
    choice, so the draft's confidences then come closer to its acceptance rate. Sampled text is drafted worse."""

    def __post_init__(self) -> None:
        require(self, lambda value: 0 < value < float("inf"), "be above 0", "teacher_temperature")
        if self.goal != "forward-kl" and self.teacher_temperature != 1:
            raise ValueError(
                f"--teacher-temperature applies only to --goal forward-kl, not to --goal {self.goal}; leave one out"
            )


@dataclasses.dataclass(frozen=True)
class BlockObjective(Distillation):
    """The same loss for drafters that are trained in blocks: EDD, and layer skipping."""

    block_min: int = 5
    """Shortest block. Each step cuts the text into blocks of a random length. A block corresponds to one round of
    drafting: it sees the target's hidden states of the blocks before it, and embeddings of its own tokens."""
    block_max: int = 10
    """Longest block. If it equals --block-min, all blocks have that length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.block_min <= self.block_max:
            raise ValueError(
                "--block-min must be at least 1 and at most --block-max, not --block-min "
                f"{self.block_min} --block-max {self.block_max}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle(HeadSettings):
    """Train an EAGLE head: one decoder layer that predicts the target's next feature.

    The defaults are the paper's. The target is frozen and runs inside each step.

    For example: jaxspec-train eagle --target tinyllama --data sharegpt.json --steps 20000
    """

    objective: conf.OmitArgPrefixes[EagleObjective] = EagleObjective()
    bias: bool = False
    """Add a bias to `fc`, the layer that fuses token and feature, as in EAGLE's first heads. Later heads have
    `"bias": false`, and vLLM supports no bias."""
    inputs: Literal["shifted", "unshifted", "feature", "token"] = "shifted"
    """What the head reads, for the paper's ablation (Figures 3 and 9). shifted: a feature and the token after it, which
    is EAGLE. unshifted: a feature and its own token. feature, token: only one of EAGLE's two, without `fc`. Only heads
    with shifted tokens can be exported."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(
        steps=20_000, batch_size=8, learning_rate=3e-5, weight_decay=0.01, clip=0.5
    )


@dataclasses.dataclass(frozen=True)
class Eagle3Objective:
    """EAGLE-3's loss."""

    draft_steps: int = 7
    """Drafting steps that are unrolled in training (training-time test). Each step reads the output of the step before.
    1 trains only the first drafted token."""
    decay: float = 0.8
    """Weight of a step's loss relative to the step before."""

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "draft_steps")
        require(self, lambda value: 0 < value <= 1, "be above 0 and at most 1", "decay")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3(HeadSettings):
    """Train an EAGLE-3 head: one decoder layer over features of three of the target's layers, and a small LM head.

    The head trains on its own drafts, seven steps deep. It learns the target's distribution over the draft vocabulary:
    the most frequent tokens among those that count in the loss. In text that the target generated, these are its own
    answers.

    For example: jaxspec-train eagle3 --target tinyllama --data generated.jsonl --steps 20000
    """

    objective: conf.OmitArgPrefixes[Eagle3Objective] = Eagle3Objective()
    draft_vocab: int = 32_000
    """Size of the draft vocabulary, at most that of the target's vocabulary."""
    taps: tuple[int, ...] | None = None
    """Target layers, counted from 0, whose inputs the head reads. Default: 2, n/2 and n - 3 of n layers."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(
        steps=20_000, batch_size=8, learning_rate=1e-4, weight_decay=0.01, clip=0.5
    )

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "draft_vocab")
        context, needed = self.where.context, self.objective.draft_steps + 2
        if context is not None and context < needed:
            raise ValueError(
                f"--context {context} is too short for --draft-steps {self.objective.draft_steps}: the last step "
                f"predicts the token {needed - 1} positions ahead, so --context must be at least {needed}"
            )


@dataclasses.dataclass(frozen=True)
class DflashObjective(Distillation):
    """DFlash's loss over the tokens of blocks: the text's cross-entropy, or distillation from the target."""

    goal: Goal = "cross-entropy"
    """cross-entropy: that of the tokens of the text, as published. forward-kl: KL(target || draft), which is the better
    goal for text that the target did not generate."""
    anchors: int = 512
    """Blocks per training window. Each begins at a random token; all are drawn anew at each step."""
    weighting: Literal["decay", "d-pace"] = "decay"
    """Weights of the tokens of a block. decay: exp(-(k - 1) / --decay-scale) for the k-th drafted token. d-pace: the
    expected number of accepted tokens from that one on, by the head's own probabilities."""
    decay_scale: float | None = None
    """With --weighting decay: tokens after which the weight has fallen to 1/e. Default: 7, 5 and 4 for blocks of 16, 10
    and 8 tokens, as published; half the block for others."""
    smoothing: float = 0.5
    """With --weighting d-pace: lower bound of a probability. A value above 0 keeps later tokens in the loss while the
    head is poor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, lambda value: value >= 1, "be at least 1", "anchors")
        require(self, lambda value: value is None or value > 0, "be above 0", "decay_scale")
        require(self, lambda value: 0 <= value <= 1, "be from 0 to 1", "smoothing")

    def scale(self, block: int) -> float:
        """The decay's scale for blocks of so many tokens."""
        return {16: 7.0, 10: 5.0, 8: 4.0}.get(block, block / 2) if self.decay_scale is None else self.decay_scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dflash(HeadSettings):
    """Train a DFlash head: a few layers over features of the target that draft a block of tokens in one pass.

    The head has no LM head; drafts are read with the target's. Train long blocks: decoding can use shorter ones.

    For example: jaxspec-train dflash --target tinyllama --data generated.jsonl --steps 20000
    """

    objective: conf.OmitArgPrefixes[DflashObjective] = DflashObjective()
    layers: int = 5
    """Decoder layers of the head."""
    block: int = 16
    """Tokens of a block, including its first one, which is known: the head drafts one token less."""
    taps: tuple[int, ...] | None = None
    """Target layers, counted from 0, whose inputs the head reads. Default: as many as it has layers, spread evenly."""
    mask_token: int | None = None
    """Id of the token that stands for unknown tokens in a block. Default: the last id of the vocabulary."""
    markov_rank: int = 0
    """Rank of a Markov term (DSpark), which corrects each drafted token's logits by the token before it; 256 in its
    paper. 0: none, as in DFlash. Heads with one cannot be exported."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(
        steps=20_000, batch_size=8, learning_rate=6e-4, weight_decay=0.01, clip=1.0
    )

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "layers")
        require(self, lambda value: value >= 2, "be at least 2", "block")
        require(self, lambda value: value >= 0, "be at least 0", "markov_rank")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftModel(HeadSettings):
    """Distil a small LLaMA from a target, as its draft model.

    For example: jaxspec-train draft-model --target tinyllama --data ~/src --layers 2 --hidden-size 256

    The defaults make the vanilla draft model (VDM) of EDD's paper: one layer of the target's shape, trained like EDD.
    To keep it beside another draft model, give it a name of its own, and decode with `draft-model@vdm`: jaxspec-train
    draft-model --target tinyllama --out tinyllama/heads/vdm
    """

    layers: int = 1
    """Decoder layers."""
    hidden_size: int | None = None
    """Width of the residual stream. Default: the target's; then embedding and LM head start as copies of the
    target's."""
    objective: conf.OmitArgPrefixes[Distillation] = Distillation()
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=20_000, batch_size=8, learning_rate=1e-4)

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "layers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyExit(HeadSettings):
    """Train an early exit (EESD): a decoder layer, norm and LM head after the target's first layers.

    Training loads and runs only these layers and the exit. The defaults are the paper's, for 100,000 samples.

    For example: jaxspec-train early-exit --target tinyllama --data generated.jsonl --open-data ~/src
    """

    first: int | None = None
    """Target layers before the exit. Default: 6.5 % of the layers, as in the paper (3 of 40, 5 of 80), but at least
    one."""
    exit_layers: int = 1
    """Decoder layers of the exit. 0: only a norm and an LM head, the paper's ablation."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=6250, batch_size=64, learning_rate=1e-3)

    def __post_init__(self) -> None:
        if self.where.cache_features is not None:
            raise ValueError("--cache-features has no use here: an early exit trains without the target's features")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edd(HeadSettings):
    """Train an EDD head: a one-layer LLaMA that reads the target's hidden states of verified tokens as a soft prompt.

    It starts from the target's own weights. The defaults are the paper's, for one epoch of ShareGPT. Set --steps for
    your text.

    For example: jaxspec-train edd --target tinyllama --data sharegpt.json --steps 20000
    """

    objective: conf.OmitArgPrefixes[BlockObjective] = BlockObjective()
    tap: int | None = None
    """Target layer, counted from 0, whose output the head reads. Default: the fourth-to-last."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=20_000, batch_size=8, learning_rate=1e-4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Medusa(HeadSettings):
    """Train Medusa heads. They all read the same feature, and each predicts one token further ahead.

    This is Medusa-1: the target is frozen, and runs inside each step. The loss is the cross-entropy of the text's
    tokens.

    For example: jaxspec-train medusa --target tinyllama --data sharegpt.json --steps 20000
    """

    heads: int = 5
    """Number of heads, which limits the length of a drafted path. Each head has a matrix of the LM head's size and
    starts as a copy of it. EDD's paper compares drafters on chains of five tokens."""
    decay: float = 0.8
    """Weight of a head's loss relative to the head before."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=20_000, batch_size=8, learning_rate=1e-3)

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "heads")
        require(self, lambda value: 0 < value <= 1, "be above 0 and at most 1", "decay")
        if self.where.context is not None and self.where.context < self.heads + 2:
            raise ValueError(
                f"--context {self.where.context} is too short for {self.heads} heads: the last one predicts the token "
                f"{self.heads + 1} positions ahead, so --context must be at least {self.heads + 2}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSkip(HeadSettings):
    """Train the blocks that remain when layers are skipped for drafting (Draft & Verify, Appendix E).

    Leaving out many blocks makes drafts fast but bad. Training the remaining blocks to imitate the whole target makes
    them good again. The head stores the skip set and its own weights: the remaining blocks and the final norm. By
    default it is TARGET/heads/layer-skip-trained; decode with `layer-skip@layer-skip-trained`.

    With --context 512 the default length of training is the paper's best, 60M tokens. The paper does not give batch
    size, optimizer and learning rate, so these and the loss are EDD's. The blocks of the loss are as long as drafts
    with a controller can be.

    For example: jaxspec-train layer-skip --target tinyllama --aggressive --data ~/src --context 512
    """

    objective: conf.OmitArgPrefixes[BlockObjective] = BlockObjective(block_max=12)
    skip_set: Annotated[Path | None, conf.arg(name="set")] = None
    """Skip set to train. Default: TARGET/heads/layer-skip."""
    aggressive: bool = False
    """Select a larger skip set: it leaves out the two shares below, and the trials of a search rank the blocks."""
    search: Path | None = None
    """With --aggressive: folder of the search's run. Default: TARGET/heads/layer-skip.run."""
    attention_share: float = 0.75
    """With --aggressive: share of attention blocks to leave out. The default is the paper's for LLaMA-2-13B."""
    mlp_share: float = 0.325
    """With --aggressive: share of MLP blocks to leave out. The default is the paper's, too."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=14_650, batch_size=8, learning_rate=1e-4)

    def __post_init__(self) -> None:
        require(self, lambda value: 0 <= value <= 1, "be from 0 to 1", "attention_share", "mlp_share")
        if self.aggressive and self.skip_set is not None:
            raise ValueError(
                "--aggressive selects a set from the trials of a search, and --set names a set: give only one of them"
            )
        if self.search is not None and not self.aggressive:
            raise ValueError("--search has a meaning only with --aggressive: give both or neither")
        if self.where.cache_features is not None:
            raise ValueError(
                "--cache-features stores only the target's last features, but layer skipping reads all layers: omit it"
            )
