"""The command `jaxspec-train`."""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated, Literal

from tyro import conf

from jaxspec.commands.console import parse, run
from jaxspec.engine.device_options import Devices
from jaxspec.train.run.folder import open_run, run_folder
from jaxspec.train.run.recipe import Recipe
from jaxspec.train.settings.generate import Generate
from jaxspec.train.settings.layer_skip import LayerSkip
from jaxspec.train.settings.objectives import BlockObjective, Distillation, EagleObjective
from jaxspec.train.settings.options import Data, DataMixture, Dtype, Where, option, settings
from jaxspec.train.settings.skip_search import SkipSearch


@dataclasses.dataclass(frozen=True)
class Lm:
    """Train a small LLaMA from scratch, tokenizer included, on text.

    OUT is a checkpoint like a converted one and appears when it is complete, or not at all. The same seed gives the
    same bits, also where the run is killed in between: the same command goes on from the last checkpoint in RUN.

    For example: jaxspec-train lm small --data ~/notes --steps 1000
    """

    out: Annotated[conf.Positional[Path], conf.arg(metavar="OUT")]
    """Checkpoint to make; must not exist."""
    data: conf.OmitArgPrefixes[Data] = Data()
    layers: int = 4
    """Decoder layers."""
    hidden_size: int = 128
    """Width of the residual stream."""
    head_dim: int = 32
    """Width of an attention head."""
    vocab_size: int = 1024
    """Tokens of the byte-level BPE, two special ones among them."""
    tied: bool = False
    """Use the embedding as LM head."""
    context: int = 256
    """Tokens of a training window, and positions that the model can use."""
    layer_dropout: float = 0.0
    """Probability of leaving out the last layer in a step, falling to 0 at the first one (LayerSkip's schedule), so
    that early exits and skipped layers keep their sense."""
    save_dtype: Dtype = "float32"
    """Of the parameters in the checkpoint."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run: checkpoints, metrics and a figure; OUT.run if not given."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=200, batch_size=16, learning_rate=2e-3)

    def run(self) -> None:
        from jaxspec.train.methods import lm

        if not 0 <= self.layer_dropout < 1:
            raise ValueError(f"--layer-dropout must be from 0 to below 1, not {self.layer_dropout}")
        model = lm.shape(self.vocab_size, self.layers, self.hidden_size, self.head_dim, self.context, self.tied)
        found = self.data.read()
        with open_run(run_folder(self.out, self.run_dir), settings("lm", self)) as opened:
            lm.train(
                self.out, found, model, self.recipe, opened, layer_dropout=self.layer_dropout, dtype=self.save_dtype
            )


@dataclasses.dataclass(frozen=True)
class Eagle:
    """Train an EAGLE head: one decoder layer that predicts the target's next feature.

    The defaults are the paper's. The target is frozen and runs inside each step.

    For example: jaxspec-train eagle --target tinyllama --data sharegpt.json --steps 20000
    """

    where: conf.OmitArgPrefixes[Where]
    data: conf.OmitArgPrefixes[DataMixture] = DataMixture()
    objective: conf.OmitArgPrefixes[EagleObjective] = EagleObjective()
    bias: bool = True
    """Give the layer that fuses token and feature a bias, as most published heads have."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(
        steps=20_000, batch_size=8, learning_rate=3e-5, weight_decay=0.01, clip=0.5
    )

    def run(self) -> None:
        from jaxspec.checkpoint.loading import load
        from jaxspec.train.methods import eagle

        with self.where.job("eagle", self, self.data, self.recipe, load) as job:
            eagle.train(job, self.objective, self.bias, self.where.save_dtype)


@dataclasses.dataclass(frozen=True)
class DraftModel:
    """Distil a small LLaMA from a target, to draft for it.

    For example: jaxspec-train draft-model --target tinyllama --data ~/src --layers 2 --hidden-size 256

    As it is, it makes the vanilla draft model (VDM) that EDD's paper compares with: one layer of the target's shape,
    trained as EDD is. Kept beside another draft model, `draft-model@vdm` drafts with it:
    jaxspec-train draft-model --target tinyllama --out tinyllama/heads/vdm
    """

    where: conf.OmitArgPrefixes[Where]
    data: conf.OmitArgPrefixes[DataMixture] = DataMixture()
    layers: int = 1
    """Decoder layers."""
    hidden_size: int | None = None
    """Width of the residual stream; the target's if not given, and then embedding and LM head start from the
    target's."""
    goal: Distillation = "forward-kl"
    """KL(target || draft), or the cross-entropy of the text's own tokens."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=20_000, batch_size=8, learning_rate=1e-4)

    def run(self) -> None:
        from jaxspec.checkpoint.loading import load
        from jaxspec.train.methods import draft_model

        if self.layers < 1:
            raise ValueError(f"--layers must be at least 1, not {self.layers}")
        with self.where.job("draft-model", self, self.data, self.recipe, load) as job:
            draft_model.train(job, self.goal, self.layers, self.hidden_size, self.where.save_dtype)


@dataclasses.dataclass(frozen=True)
class EarlyExit:
    """Train an early exit (EESD): a decoder layer, norm and LM head after the target's first layers.

    Only those layers and the exit run and are loaded. The recipe is the paper's, for 100,000 samples.

    For example: jaxspec-train early-exit --target tinyllama --data generated.jsonl --open-data ~/src
    """

    where: conf.OmitArgPrefixes[Where]
    data: conf.OmitArgPrefixes[DataMixture] = DataMixture()
    first: int | None = None
    """Layers of the target before the exit; 7 % of them if not given, at least one."""
    exit_layers: int = 1
    """Decoder layers of the exit."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=6250, batch_size=64, learning_rate=1e-3)

    def run(self) -> None:
        from jaxspec.train.methods import early_exit

        load = functools.partial(early_exit.load, first=self.first)
        with self.where.job("early-exit", self, self.data, self.recipe, load) as job:
            early_exit.train(job, self.exit_layers, self.where.save_dtype)


@dataclasses.dataclass(frozen=True)
class Edd:
    """Train an EDD head: a one-layer LLaMA that reads the target's hidden states of verified tokens as a soft prompt.

    It starts from the target's own weights. The defaults are the paper's, for one epoch of ShareGPT; set --steps to
    your text.

    For example: jaxspec-train edd --target tinyllama --data sharegpt.json --steps 20000
    """

    where: conf.OmitArgPrefixes[Where]
    data: conf.OmitArgPrefixes[DataMixture] = DataMixture()
    objective: conf.OmitArgPrefixes[BlockObjective] = BlockObjective()
    tap: int | None = None
    """Layer of the target, counted from 0, whose output the head reads; the fourth-to-last if not given."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=20_000, batch_size=8, learning_rate=1e-4)

    def run(self) -> None:
        from jaxspec.checkpoint.loading import load
        from jaxspec.train.methods import edd

        with self.where.job("edd", self, self.data, self.recipe, load) as job:
            edd.train(job, self.objective, self.tap, self.where.save_dtype)


@dataclasses.dataclass(frozen=True)
class Medusa:
    """Train Medusa heads: beside the LM head, each reads one token further ahead from the same feature.

    This is Medusa-1: the target is frozen, and runs inside each step. The loss is that of the text's own tokens.

    For example: jaxspec-train medusa --target tinyllama --data sharegpt.json --steps 20000
    """

    where: conf.OmitArgPrefixes[Where]
    data: conf.OmitArgPrefixes[DataMixture] = DataMixture()
    heads: int = 5
    """Heads, and so the most tokens of a drafted path. Each has a matrix of the LM head's size, and starts from it.
    Five are as many as the tokens of the chain that EDD's paper compares drafters on."""
    decay: float = 0.8
    """The loss of a head weighs this much of that of the head before it."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=20_000, batch_size=8, learning_rate=1e-3)

    def run(self) -> None:
        from jaxspec.checkpoint.loading import load
        from jaxspec.train.methods import medusa

        if self.heads < 1:
            raise ValueError(f"--heads must be at least 1, not {self.heads}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"--decay must be above 0 and at most 1, not {self.decay}")
        with self.where.job("medusa", self, self.data, self.recipe, load) as job:
            medusa.train(job, self.heads, self.decay, self.where.save_dtype)


@dataclasses.dataclass(frozen=True)
class Calibrator:
    """Train Cali-TS's predictor for a trained head: will the target accept what was just drafted?

    It collects its own labels, by decoding with that head. A run that was killed goes on when the same command is given
    again.

    For example: jaxspec-train calibrator --target tinyllama --head eagle
    """

    target: Path
    """Checkpoint that the head is for, or `builtin`."""
    head: str
    """Trained head: its name in the checkpoint, or its folder."""
    out: Path | None = None
    """Predictor to make; `calibrator` in the head's folder if not given, where `cali-ts` looks for it."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run; OUT.run if not given."""
    data: conf.OmitArgPrefixes[Data] = Data()
    samples: int = 400
    """Texts to decode, from prompts that are cut from the data where it is not held out."""
    prompt_tokens: int = 64
    """Tokens of a prompt, at most."""
    max_new_tokens: int = 128
    """Tokens of a text after its prompt, at most."""
    length: int = 10
    """Tokens of a drafted chain; the predictor has a matrix for each of the first ten."""
    batch_size: int = 16
    """Texts decoded together."""
    steps: int = 2000
    """Optimizer steps."""
    rounds: int = 64
    """Drafted chains in a step's batch."""
    learning_rate: float = 1e-3
    """Its peak; a cosine takes it to a tenth."""
    seed: int = 0
    """Decides where prompts are cut, the initial weights, and the order of training."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of decoding; float32 on a CPU and bfloat16 on an accelerator if not given."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
    save_dtype: Dtype = "bfloat16"
    """Of the predictor on disk."""

    def run(self) -> None:
        for name in ("samples", "prompt_tokens", "max_new_tokens", "length", "batch_size", "steps", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{option(name)} must be at least 1, not {getattr(self, name)}")
        from jaxspec.engine.prompts import encode
        from jaxspec.train.data import beginnings
        from jaxspec.train.methods import acceptance_predictor
        from jaxspec.train.methods.generation import load_with_tokenizer

        model = load_with_tokenizer(self.target, self.dtype, self.devices.open())
        out = acceptance_predictor.folder_of(model, self.head, self.out)
        cut = beginnings.cut(self.data.read(), model.tokenizer, self.samples, self.prompt_tokens, self.seed)
        plan = acceptance_predictor.LabelSettings(
            max_new_tokens=self.max_new_tokens,
            length=self.length,
            batch_size=self.batch_size,
            steps=self.steps,
            rounds=self.rounds,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )
        with open_run(run_folder(out, self.run_dir), settings("calibrator", self)) as opened:
            acceptance_predictor.train(
                out, model, self.head, encode([*cut], model, chat=False), plan, opened, self.save_dtype
            )


Command = (
    Annotated[Lm, conf.subcommand("lm")]
    | Annotated[Eagle, conf.subcommand("eagle")]
    | Annotated[DraftModel, conf.subcommand("draft-model")]
    | Annotated[EarlyExit, conf.subcommand("early-exit")]
    | Annotated[Edd, conf.subcommand("edd")]
    | Annotated[Medusa, conf.subcommand("medusa")]
    | Annotated[LayerSkip, conf.subcommand("layer-skip")]
    | Annotated[SkipSearch, conf.subcommand("skip-search")]
    | Annotated[Calibrator, conf.subcommand("calibrator")]
    | Annotated[Generate, conf.subcommand("generate")]
)


def main() -> None:
    """Entry point of the console script."""
    run(lambda: parse(Command, "jaxspec-train", "Train models and draft heads.").run())


if __name__ == "__main__":
    main()
