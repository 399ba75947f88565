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
    """A head's target and place."""

    target: Path
    """Checkpoint to train a head for."""
    out: Path | None = None
    """Head to make; TARGET/heads/NAME if not given. Must not exist."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run: checkpoints, metrics and a figure; OUT.run if not given. A run that was killed goes on from
    its last checkpoint when the same command is given again, and ends with the same bits."""
    context: int | None = None
    """Tokens of a training window; the target's own context if not given, at most 2048."""
    cache_features: Path | None = None
    """Folder to keep the target's features in, so that later epochs need not compute them: for small runs, since a
    token takes the hidden size times 2 or 4 bytes, twice that for EDD, which reads another layer too, and four times
    that for EAGLE-3, which reads three. Several hosts must all see the folder."""
    save_dtype: Dtype = "bfloat16"
    """Of the head's parameters on disk."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """What training any head needs to know."""

    where: conf.OmitArgPrefixes[Where]
    data: conf.OmitArgPrefixes[DataMixture] = DataMixture()
    recipe: conf.OmitArgPrefixes[Recipe]


@dataclasses.dataclass(frozen=True)
class EagleObjective:
    """What EAGLE minimises."""

    cross_entropy: float = 0.1
    """Weight of the cross-entropy beside the regression's SmoothL1."""
    noise: float = 0.1
    """The features that go in get noise from U(-noise, noise)."""
    noise_scale: Literal["constant", "length"] = "constant"
    """constant, as in the paper; length: times 512 / tokens of a window, as in its published code."""

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 0, "not be below 0", "cross_entropy", "noise")


@dataclasses.dataclass(frozen=True)
class Distillation:
    """What a drafter minimises that learns the distribution of the next token."""

    goal: Goal = "forward-kl"
    """KL(target || draft), or the cross-entropy of the text's own tokens."""
    teacher_temperature: float = 1.0
    """The target's logits are divided by this before the KL, the draft's are not. 1 teaches the target's own
    distribution, as the papers do. Below 1 it is sharpened, for greedy text: that follows the target's first choice
    however unsure the target is, so the draft's confidence comes nearer to the share accepted. Text that is sampled is
    drafted worse by it."""

    def __post_init__(self) -> None:
        require(self, lambda value: 0 < value < float("inf"), "be above 0", "teacher_temperature")
        if self.goal != "forward-kl" and self.teacher_temperature != 1:
            raise ValueError(f"--teacher-temperature is of the KL, and --goal {self.goal} has no teacher: give either")


@dataclasses.dataclass(frozen=True)
class BlockObjective(Distillation):
    """The same of a drafter that is trained in blocks: EDD, and layer skipping."""

    block_min: int = 5
    """The text is cut into blocks, each standing for one round of drafting: it sees what the target knows of the blocks
    before it, and embeddings of its own tokens. This is the shortest block; a length is drawn at every step."""
    block_max: int = 10
    """The longest block; the same as --block-min for one fixed length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.block_min <= self.block_max:
            raise ValueError(
                f"blocks have at least 1 token and --block-max is not below --block-min, unlike --block-min "
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
    """Give the layer that fuses token and feature a bias, as EAGLE's first heads have. Its later ones say `"bias":
    false`, and vLLM builds none."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(
        steps=20_000, batch_size=8, learning_rate=3e-5, weight_decay=0.01, clip=0.5
    )


@dataclasses.dataclass(frozen=True)
class Eagle3Objective:
    """What EAGLE-3 minimises."""

    draft_steps: int = 7
    """Steps of drafting that are unrolled in training (training-time test): each reads what the step before it made.
    1 trains the first drafted token alone."""
    decay: float = 0.8
    """The loss of a step weighs this much of that of the step before it."""

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "draft_steps")
        require(self, lambda value: 0 < value <= 1, "be above 0 and at most 1", "decay")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3(HeadSettings):
    """Train an EAGLE-3 head: one decoder layer over features of three of the target's layers, and a small LM head.

    The head is trained on what it drafts itself, seven steps deep, and is taught the target's distribution over its
    draft vocabulary: the tokens that are most frequent in what training counts, which for text that the target
    generated are its own answers.

    For example: jaxspec-train eagle3 --target tinyllama --data generated.jsonl --steps 20000
    """

    objective: conf.OmitArgPrefixes[Eagle3Objective] = Eagle3Objective()
    draft_vocab: int = 32_000
    """Tokens of the draft vocabulary; the target's whole one where it has no more."""
    taps: tuple[int, ...] | None = None
    """Layers of the target, counted from 0, whose inputs the head reads; 2, n/2 and n - 3 of n if not given."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(
        steps=20_000, batch_size=8, learning_rate=1e-4, weight_decay=0.01, clip=0.5
    )

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "draft_vocab")
        context, needed = self.where.context, self.objective.draft_steps + 2
        if context is not None and context < needed:
            raise ValueError(
                f"--context {context} is too short for --draft-steps {self.objective.draft_steps}: the last step "
                f"predicts the token {needed - 1} further on, so it must be at least {needed}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftModel(HeadSettings):
    """Distil a small LLaMA from a target, to draft for it.

    For example: jaxspec-train draft-model --target tinyllama --data ~/src --layers 2 --hidden-size 256

    As it is, it makes the vanilla draft model (VDM) that EDD's paper compares with: one layer of the target's shape,
    trained as EDD is. Kept beside another draft model, `draft-model@vdm` drafts with it:
    jaxspec-train draft-model --target tinyllama --out tinyllama/heads/vdm
    """

    layers: int = 1
    """Decoder layers."""
    hidden_size: int | None = None
    """Width of the residual stream; the target's if not given, and then embedding and LM head start from the
    target's."""
    objective: conf.OmitArgPrefixes[Distillation] = Distillation()
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=20_000, batch_size=8, learning_rate=1e-4)

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "layers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyExit(HeadSettings):
    """Train an early exit (EESD): a decoder layer, norm and LM head after the target's first layers.

    Only those layers and the exit run and are loaded. The recipe is the paper's, for 100,000 samples.

    For example: jaxspec-train early-exit --target tinyllama --data generated.jsonl --open-data ~/src
    """

    first: int | None = None
    """Layers of the target before the exit; 7 % of them if not given, at least one."""
    exit_layers: int = 1
    """Decoder layers of the exit."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=6250, batch_size=64, learning_rate=1e-3)

    def __post_init__(self) -> None:
        if self.where.cache_features is not None:
            raise ValueError("--cache-features is of no use here: the target's features are not computed in a step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edd(HeadSettings):
    """Train an EDD head: a one-layer LLaMA that reads the target's hidden states of verified tokens as a soft prompt.

    It starts from the target's own weights. The defaults are the paper's, for one epoch of ShareGPT; set --steps to
    your text.

    For example: jaxspec-train edd --target tinyllama --data sharegpt.json --steps 20000
    """

    objective: conf.OmitArgPrefixes[BlockObjective] = BlockObjective()
    tap: int | None = None
    """Layer of the target, counted from 0, whose output the head reads; the fourth-to-last if not given."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=20_000, batch_size=8, learning_rate=1e-4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Medusa(HeadSettings):
    """Train Medusa heads: beside the LM head, each reads one token further ahead from the same feature.

    This is Medusa-1: the target is frozen, and runs inside each step. The loss is that of the text's own tokens.

    For example: jaxspec-train medusa --target tinyllama --data sharegpt.json --steps 20000
    """

    heads: int = 5
    """Heads, and so the most tokens of a drafted path. Each has a matrix of the LM head's size, and starts from it.
    Five are as many as the tokens of the chain that EDD's paper compares drafters on."""
    decay: float = 0.8
    """The loss of a head weighs this much of that of the head before it."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=20_000, batch_size=8, learning_rate=1e-3)

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "heads")
        require(self, lambda value: 0 < value <= 1, "be above 0 and at most 1", "decay")
        if self.where.context is not None and self.where.context < self.heads + 2:
            raise ValueError(
                f"--context {self.where.context} is too short for {self.heads} heads: the last one predicts the token "
                f"{self.heads + 1} further on, so it must be at least {self.heads + 2}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSkip(HeadSettings):
    """Train the blocks further that drafting keeps where a model drafts for itself (Draft & Verify, Appendix E).

    A set that leaves out much drafts badly; trained to speak as the whole target does, it drafts well and stays fast.
    The head, TARGET/heads/layer-skip-trained if not given, has a set and weights of its own: the kept blocks and the
    final norm. It drafts as `layer-skip@layer-skip-trained`.

    By default it trains as long as is best in the paper, 60M tokens of texts of 512, if --context is 512. Of batch,
    optimizer and learning rate the paper says nothing: they are EDD's, and so is the loss. Its blocks get as long as
    drafts do under a controller.

    For example: jaxspec-train layer-skip --target tinyllama --aggressive --data ~/src --context 512
    """

    objective: conf.OmitArgPrefixes[BlockObjective] = BlockObjective(block_max=12)
    skip_set: Annotated[Path | None, conf.arg(name="set")] = None
    """Skip set to train, TARGET/heads/layer-skip if not given."""
    aggressive: bool = False
    """Take another set: one that leaves out the two shares below, in the order in which the trials of a search speak
    for it."""
    search: Path | None = None
    """With --aggressive: folder of the search's run, TARGET/heads/layer-skip.run if not given."""
    attention_share: float = 0.75
    """With --aggressive: attention blocks to leave out. The default is the paper's for LLaMA-2-13B."""
    mlp_share: float = 0.325
    """With --aggressive: MLP blocks to leave out; the paper's too."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=14_650, batch_size=8, learning_rate=1e-4)

    def __post_init__(self) -> None:
        require(self, lambda value: 0 <= value <= 1, "be from 0 to 1", "attention_share", "mlp_share")
        if self.aggressive and self.skip_set is not None:
            raise ValueError("--aggressive takes a set from the trials of a search, and --set names one: give either")
        if self.search is not None and not self.aggressive:
            raise ValueError("--search is where --aggressive takes a set from: give both or neither")
        if self.where.cache_features is not None:
            raise ValueError(
                "--cache-features keeps the target's last features, and drafts read all its layers: omit it"
            )
