"""The command `jaxspec`."""

import dataclasses
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro import conf

from jaxspec.console import parse, run
from jaxspec.devices import Devices
from jaxspec.evaluate.command import Bench, Calibrate, Sweep
from jaxspec.planning.command import Plan

if TYPE_CHECKING:
    from jaxspec.engine import Engine
    from jaxspec.generation import Generation


@dataclasses.dataclass(frozen=True)
class Generate:
    """Generate text: what plain decoding of the target would give, sooner.

    For example: jaxspec generate --target tinyllama --prompt "def main():" --max-new-tokens 64 --show-drafts
    """

    target: Path
    """Checkpoint that `jaxspec-convert llama` made, or `builtin`, the small model that comes with jaxspec."""
    method: str | None = None
    """DRAFTER[@HEAD][+BUILDER][+CONTROLLER], each with settings if wanted, such as ngram+chain,length=6; the best
    trained head in the checkpoint if not given. `jaxspec methods` lists them."""
    prompt: str | None = None
    """The prompt."""
    prompts: Path | None = None
    """Or a JSONL file of them: {"prompt": ...} or {"turns": [...]} a line (the first turn is taken); or `builtin`."""
    limit: int | None = None
    """Take only the first prompts of the file."""
    max_new_tokens: int = 128
    """Tokens to generate for each prompt, at most."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that make up this probability; 1: from all."""
    top_k: int = 0
    """Sample from this many likeliest tokens; 0: from all."""
    seed: int = 0
    """Prompt i draws from fold_in(key(seed), i): the same text in any batch."""
    stop: tuple[str, ...] = ()
    """Strings that end the text."""
    chat: bool = False
    """Put each prompt through the tokenizer's chat template."""
    stream: bool = False
    """Print the text of a single prompt as it comes."""
    show_drafts: bool = False
    """Colour what was drafted and accepted, drafted and rejected, and added by the target."""
    format: Literal["text", "json"] = "text"
    """json: a line for each prompt, with text, tokens and statistics."""
    batch_size: int | None = None
    """Prompts decoded together; 8 at most if not given."""
    keep_state: bool = False
    """A controller that learns goes on from the prompt before: row i of a batch from row i of the last batch."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
    repetition_penalty: float = 1.0
    """Refused unless 1: the text would depend on more than the target's distribution."""

    def run(self) -> None:
        from jaxspec.engine import Engine
        from jaxspec.evaluate.suites import read_questions
        from jaxspec.prompts import stateful_refusal

        if self.prompts is not None and self.prompt is None:
            prompts = [question.turns[0] for question in read_questions(self.prompts, self.limit)]
        elif self.prompt is not None and self.prompts is None:
            prompts = [self.prompt]
        else:
            raise ValueError("give either --prompt TEXT or --prompts FILE")
        if self.repetition_penalty != 1:
            raise stateful_refusal("repetition_penalty")
        if self.stream and (self.prompts or self.show_drafts or self.format == "json"):
            raise ValueError("--stream prints the plain text of one --prompt; leave out the other options")
        engine = Engine(str(self.target), self.method, dtype=self.dtype, mesh=self.devices.open(several=True))
        if self.method is None:
            say(f"method: {engine.method}")
        settings: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "stop", "chat")
        }
        if self.stream:
            for piece in engine.stream(prompts[0], **settings):
                print(piece, end="", flush=True)
            print()
            return
        if self.show_drafts and engine.model.tokenizer is None:
            raise ValueError(f"{self.target} has no tokenizer, so there is no text to colour")
        settings |= {"batch_size": self.batch_size, "record": self.show_drafts, "keep_state": self.keep_state}
        found = engine.generate(prompts, **settings)
        for prompt, generation in zip(prompts, found, strict=True):
            self._print(engine, prompt, generation)

    def _print(self, engine: "Engine", prompt: str | None, generation: "Generation") -> None:
        if self.format == "json":
            print(json.dumps(as_json(prompt, generation), ensure_ascii=False))
        elif self.show_drafts:
            from rich.console import Console

            from jaxspec.show import LEGEND, coloured

            Console(highlight=False, soft_wrap=True).print(coloured(generation, engine.model.tokenizer, rejected=True))
            say(LEGEND)
        else:
            print(generation.text)
        found = generation.statistics
        say(
            f"{len(generation.tokens)} tokens in {found.rounds} rounds, tau {found.tau:.2f}, {generation.finish_reason}"
        )


@dataclasses.dataclass(frozen=True)
class Methods:
    """List what this version can run, and what a checkpoint has heads for.

    For example: jaxspec methods --target tinyllama
    """

    target: Path | None = None
    """Checkpoint whose heads to look for; `builtin` for the one that comes with jaxspec."""

    def run(self) -> None:
        from rich.console import Console
        from rich.table import Table

        from jaxspec import checkpoint, methods
        from jaxspec.bundled import locate

        heads: tuple[str, ...] = ()
        if self.target is not None:
            folder = locate(self.target)
            checkpoint.read_config(folder)
            heads = checkpoint.heads(folder)
        table = Table("part", "name", "settings and defaults", "what it is", box=None, pad_edge=False)
        for kind, names in (
            ("drafter", methods.DRAFTERS),
            ("builder", methods.BUILDERS),
            ("controller", methods.CONTROLLERS),
        ):
            for name, strategy in names.items():
                table.add_row(kind, name, methods.describe_settings(strategy), (strategy.__doc__ or "").split("\n")[0])
        console = Console(highlight=False, markup=False)
        console.print(table)
        console.print("\nA method is DRAFTER[@HEAD][+BUILDER][+CONTROLLER], such as ngram+chain,length=6.")
        if self.target is None:
            return
        ready = [name for name, can_run in methods.runnable(heads) if can_run]
        console.print(f"{self.target} can run: {', '.join(ready)}")
        console.print(f"heads found: {', '.join(heads) or 'none'}")
        console.print(f"without --method: {methods.default_method(heads)}")


@dataclasses.dataclass(frozen=True)
class Env:
    """Say what jaxspec runs on: versions, devices, memory, caches."""

    def run(self) -> None:
        import jax

        from jaxspec import caches, checkpoint, costs
        from jaxspec.evaluate import environment

        for name, version in environment.versions().items():
            print(f"{name:10} {version}")
        for device in jax.devices():
            free = checkpoint.available_bytes(device) / 1e9
            print(f"{'device':10} {device.platform}:{device.id} {device.device_kind}, {free:.1f} GB free")
        print(f"{'processor':10} {environment.device()}")
        print(f"{'cache':10} {caches.folder()}")
        print(f"{'costs':10} {costs.folder()}")
        print(f"{'compiled':10} {caches.keep_compilations() or 'not kept'}")


@dataclasses.dataclass(frozen=True)
class Demo:
    """Decode with the small LLaMA that comes with jaxspec, plainly and with drafts, side by side. Takes a minute."""

    def run(self) -> None:
        from jaxspec.demo import run

        run()


def as_json(prompt: str | None, generation: "Generation") -> dict[str, Any]:
    """What `generate --format json` prints of one prompt."""
    found = generation.statistics
    return {
        "prompt": prompt,
        "text": generation.text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "rounds": found.rounds,
        "tau": found.tau,
        "tau_drafted": found.tau_drafted,
        "acceptance_rate": found.acceptance_rate,
        "prefill_seconds": generation.prefill_seconds,
        "decode_seconds": generation.decode_seconds,
    }


def say(text: str) -> None:
    """A remark, on stderr, so that stdout holds nothing but the text."""
    print(text, file=sys.stderr, flush=True)


Command = (
    Annotated[Generate, conf.subcommand("generate")]
    | Annotated[Bench, conf.subcommand("bench")]
    | Annotated[Sweep, conf.subcommand("sweep")]
    | Annotated[Calibrate, conf.subcommand("calibrate")]
    | Annotated[Plan, conf.subcommand("plan")]
    | Annotated[Methods, conf.subcommand("methods")]
    | Annotated[Env, conf.subcommand("env")]
    | Annotated[Demo, conf.subcommand("demo")]
)


def main() -> None:
    """Entry point of the console script."""
    if sys.argv[1:] == ["--version"]:
        print(f"jaxspec {importlib.metadata.version('jaxspec')}")
        return
    run(lambda: parse(Command, "jaxspec", "LLaMA text several times faster, not one token changed.").run())


if __name__ == "__main__":
    main()
