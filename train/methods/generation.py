"""What `jaxspec-train generate` does: a target writes text, for its heads to be trained on.

Heads that learn from what the target says itself accept more of it (EESD, arXiv:2406.03853, §3.2). Decoding is a
hybrid: a text's first tokens are greedy and the rest is sampled, so that it begins as the target would most likely go
on, and no two texts are alike.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.decoding.request import Request
from jaxspec.engine.engine import Engine
from jaxspec.engine.requests import check_settings
from jaxspec.engine.stop_strings import StopStrings, text_of
from jaxspec.host.atomic import write_whole
from jaxspec.host.json_lines import LineLog, to_line
from jaxspec.host.pace import Pace, progress
from jaxspec.host.terminal import say
from jaxspec.train.run.fingerprint import fingerprint


@dataclasses.dataclass(frozen=True)
class GenerationSettings:
    """How to go on from prompts.

    Attributes:
        prompts: token ids.
        max_new_tokens: of a text; fewer where the model has no more positions.
        greedy_tokens: how many of them are greedy, the first ones.
        seed: prompt i draws from fold_in(key(seed), i).
    """

    prompts: Sequence[list[int]]
    max_new_tokens: int
    greedy_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    batch_size: int


def check_place(out: Path) -> None:
    """Raises ValueError where the output is there already, or has no folder."""
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out} exists already; name another output or remove it first")
    if not (folder := out.absolute().parent).is_dir():
        raise ValueError(f"{folder}, the folder that is to hold the output, does not exist; make it first")


def open_engine(target: Path, method: str | None, dtype: str | None, mesh: Mesh | None = None) -> Engine:
    """The target with a method.

    Raises:
        ValueError: it has no tokenizer, or there is no such method.
        CheckpointError: no such target or head.
    """
    return Engine(load_with_tokenizer(target, dtype, mesh), method)


def load_with_tokenizer(target: Path, dtype: str | None, mesh: Mesh | None = None) -> Checkpoint:
    """A checkpoint. Raises ValueError where it has no tokenizer."""
    model = load(target, dtype, mesh)
    if model.tokenizer is None:
        raise ValueError(f"{model.path} has no tokenizer, so what it says cannot be made into text")
    return model


def check(plan: GenerationSettings, engine: Engine) -> None:
    """Raises ValueError for a setting of the sampling out of range, or a prompt that leaves no room for a token."""
    check_settings(Request([0], 1, plan.temperature, plan.top_k, plan.top_p, plan.seed, 0))
    room = engine.model.config.model.usable_length
    for i, prompt in enumerate(plan.prompts):
        if len(prompt) >= room:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens and the model {room} positions, which leaves none for new "
                "tokens; shorten the prompt"
            )


def write(out: Path, engine: Engine, plan: GenerationSettings, options: dict[str, Any]) -> None:
    """Writes `out`, a text a line: {"text": prompt and what follows, "prompt": …, "complete": whether it ended}.

    Until all are there, what there is lies in OUT.part: the same call goes on from it, and ends with the same bytes.

    Args:
        options: those of the command, ready for JSON.

    Raises:
        ValueError: a setting of the sampling out of range, a prompt that leaves no room for a token, or an OUT.part of
            a run with other settings.
    """
    check(plan, engine)
    decided = {
        **options,
        "--method": str(engine.method),
        "--dtype": engine.model.target.norm[...].dtype.name,
        "the hash of the target": fingerprint(engine.model.target),
        "the hash of the prompts": fingerprint([np.array(prompt, np.int32) for prompt in plan.prompts]),
    }
    log = LineLog(out.with_name(out.name + ".part"), "what a killed `generate` left", "another OUT")
    lines = log.read(decided)
    del lines[len(lines) // plan.batch_size * plan.batch_size :]  # the batches are those of an unbroken run
    log.write(decided, lines)
    before, total, tokens, pace, began = len(lines), len(plan.prompts), 0, Pace(), time.monotonic()
    with progress("text", before, total) as show:
        for first in range(before, total, plan.batch_size):
            prompts = plan.prompts[first : first + plan.batch_size]
            texts = go_on(engine, plan, prompts, first)
            made = [record(engine, prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
            log.append(made)
            lines += made
            tokens += sum(map(len, texts))
            if pace.due() or len(lines) == total:
                rate = (len(lines) - before) / (seconds := time.monotonic() - began)
                show(len(lines), f"{tokens / seconds:,.0f} tokens/s", (total - len(lines)) / rate)
    write_whole(out, "".join(map(to_line, lines)))
    log.path.unlink()
    ended = sum(line["complete"] for line in lines)
    say(f"wrote {out}: {total} texts by {engine.method}, {ended} of them complete")


def go_on(engine: Engine, plan: GenerationSettings, prompts: Sequence[list[int]], first: int) -> list[list[int]]:
    """Token ids generated for prompts, of which the first is number `first`: greedy ones, then sampled ones."""
    room = engine.model.config.model.usable_length
    texts: list[list[int]] = [[] for _ in prompts]
    for temperature, length in ((0.0, plan.greedy_tokens), (plan.temperature, plan.max_new_tokens)):
        requests = {}
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            left = min(length, plan.max_new_tokens, room - len(prompt)) - len(text)
            if left > 0 and not is_complete(engine, text):
                drawn = (temperature, plan.top_k, plan.top_p, plan.seed, first + row)
                requests[row] = Request(prompt + text, left, *drawn)
        if requests:
            found = engine.run(list(requests.values()), StopStrings((), engine.model.tokenizer), False, False)
            for row, generation in zip(requests, found, strict=True):
                texts[row] += generation.tokens
    return texts


def is_complete(engine: Engine, text: Sequence[int]) -> bool:
    """Whether the target has ended a text."""
    return bool(text) and text[-1] in engine.model.config.eos


def record(engine: Engine, prompt: list[int], generated: list[int]) -> dict[str, Any]:
    """The line of a text: without special tokens, and without half a character where it is broken off."""
    tokenizer, complete = engine.model.tokenizer, is_complete(engine, generated)
    text = text_of(tokenizer, prompt + generated[: len(generated) - complete])
    return {
        "text": text if complete else text.rstrip("\ufffd"),
        "prompt": text_of(tokenizer, prompt),
        "complete": complete,
    }
