"""Options of the commands that decode. Kept apart from the work, so that `--help` need not load JAX."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro import conf

from jaxspec.engine.device_options import Devices

if TYPE_CHECKING:
    from jaxspec.engine.engine import Engine
    from jaxspec.engine.generation import Generation
from jaxspec.commands.main import as_json, say


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
    quantize: Literal["int8", "int4"] | None = None
    """Make the target's kernels integers as they are read: half or a quarter of bfloat16's bytes. Its text changes a
    little, and what is drafted still never does. Drafters' weights stay as they are."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
    repetition_penalty: float = 1.0
    """Refused unless 1: the text would depend on more than the target's distribution."""

    def run(self) -> None:
        from jaxspec.engine.engine import Engine
        from jaxspec.engine.prompts import stateful_refusal
        from jaxspec.evaluate.suites import read_questions

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
        mesh = self.devices.open(several=True)
        engine = Engine(str(self.target), self.method, dtype=self.dtype, mesh=mesh, quantize=self.quantize)
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

            from jaxspec.report.draft_colours import LEGEND, coloured

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

        from jaxspec.checkpoint import config_json
        from jaxspec.checkpoint.builtin import locate
        from jaxspec.methods import method

        heads: tuple[str, ...] = ()
        if self.target is not None:
            folder = locate(self.target)
            config_json.read_config(folder)
            heads = config_json.head_names(folder)
        table = Table("part", "name", "settings and defaults", "what it is", box=None, pad_edge=False)
        for kind, names in (
            ("drafter", method.DRAFTERS),
            ("builder", method.BUILDERS),
            ("controller", method.CONTROLLERS),
        ):
            for name, strategy in names.items():
                table.add_row(kind, name, method.describe_settings(strategy), (strategy.__doc__ or "").split("\n")[0])
        console = Console(highlight=False, markup=False)
        console.print(table)
        console.print("\nA method is DRAFTER[@HEAD][+BUILDER][+CONTROLLER], such as ngram+chain,length=6.")
        if self.target is None:
            return
        ready = [name for name, can_run in method.runnable(heads) if can_run]
        console.print(f"{self.target} can run: {', '.join(ready)}")
        console.print(f"heads found: {', '.join(heads) or 'none'}")
        console.print(f"without --method: {method.default_method(heads)}")


@dataclasses.dataclass(frozen=True)
class Env:
    """Say what jaxspec runs on: versions, devices, memory, caches."""

    def run(self) -> None:
        import jax

        from jaxspec.checkpoint import memory
        from jaxspec.costs import kept_tables
        from jaxspec.host import cache_folder, compilation_cache, environment

        for name, version in environment.versions().items():
            print(f"{name:10} {version}")
        for device in jax.devices():
            free = memory.available_bytes(device) / 1e9
            print(f"{'device':10} {device.platform}:{device.id} {device.device_kind}, {free:.1f} GB free")
        print(f"{'processor':10} {environment.device()}")
        print(f"{'cache':10} {cache_folder.cache_folder()}")
        print(f"{'costs':10} {kept_tables.folder()}")
        print(f"{'compiled':10} {compilation_cache.keep_compilations() or 'not kept'}")


@dataclasses.dataclass(frozen=True)
class Demo:
    """Decode with the small LLaMA that comes with jaxspec, plainly and with drafts, side by side. Takes a minute."""

    def run(self) -> None:
        from jaxspec.commands.demo import run

        run()
