"""The command `jaxspec-train generate`: its options. Kept apart from its work, so that `--help` need not load JAX."""

import dataclasses
from pathlib import Path
from typing import Literal

from tyro import conf

from jaxspec.engine.device_options import Devices
from jaxspec.train.settings.options import Data, option, settings


@dataclasses.dataclass(frozen=True)
class Generate:
    """Let a target write text, to train its heads on.

    The first tokens of a text are greedy and the rest is sampled. OUT is JSONL, {"text": ..., "prompt": ...,
    "complete": ...} a line, and appears when it is complete, or not at all. A run that was killed goes on from OUT.part
    when the same command is given again, and ends with the same bytes.

    For example: jaxspec-train generate --target builtin --out texts.jsonl --samples 64
    """

    target: Path
    """Checkpoint that writes, or `builtin`."""
    out: Path
    """File to make; must not exist."""
    prompts: Path | None = None
    """JSONL file of prompts: {"prompt": ...} or {"turns": [...]} a line (the first turn is taken); or `builtin`. Take
    others than those that will measure the heads. If not given, prompts are cut from the data, where it is not held
    out."""
    data: conf.OmitArgPrefixes[Data] = Data()
    samples: int = 1000
    """Texts to write; no more than there are prompts in a file of them."""
    prompt_tokens: int = 64
    """Tokens of a prompt that is cut from the data, at most."""
    method: str | None = None
    """How to decode, which changes the speed only; the best trained head in the checkpoint if not given. `jaxspec
    methods` lists them."""
    max_new_tokens: int = 256
    """Tokens of a text after its prompt, at most; fewer where the target's context ends."""
    greedy_tokens: int = 8
    """How many of them are greedy, the first ones."""
    temperature: float = 1.0
    """Of the others."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that make up this probability; 1: from all."""
    top_k: int = 0
    """Sample from this many likeliest tokens; 0: from all."""
    batch_size: int = 16
    """Texts written together."""
    seed: int = 0
    """Decides where prompts are cut; and text i draws from fold_in(key(seed), i)."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()

    def run(self) -> None:
        for name in ("samples", "prompt_tokens", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{option(name)} must be at least 1, not {getattr(self, name)}")
        for name in ("greedy_tokens", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{option(name)} must not be below 0, not {getattr(self, name)}")
        from jaxspec.engine.prompts import encode
        from jaxspec.train.data import beginnings
        from jaxspec.train.methods import generation

        generation.check_place(self.out)
        engine = generation.open_engine(self.target, self.method, self.dtype, self.devices.open())
        tokenizer = engine.model.tokenizer
        prompts = beginnings.prompts(self.prompts, self.data, tokenizer, self.samples, self.prompt_tokens, self.seed)
        plan = generation.GenerationSettings(
            prompts=encode(prompts, engine.model, chat=False),
            max_new_tokens=self.max_new_tokens,
            greedy_tokens=self.greedy_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            batch_size=self.batch_size,
        )
        generation.write(self.out, engine, plan, settings("generate", self))
