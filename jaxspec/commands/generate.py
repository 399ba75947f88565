"""`jaxspec generate`: generates text for prompts, with statistics or coloured drafts."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console

from jaxspec.engine.engine import TOGETHER, Engine
from jaxspec.engine.generation import Generation
from jaxspec.engine.requests import refuse_stateful, warn_if_greedy
from jaxspec.evaluate.questions import read_questions
from jaxspec.host.arguments import check_unused, integer
from jaxspec.host.terminal import say
from jaxspec.options.by_command import Generate
from jaxspec.report.draft_colours import coloured, has_colours, legend, print_text

ENDED = {
    "length": "stopped at --max-new-tokens",
    "eos": "ended with the end-of-sequence token",
    "stop": "stopped at a stop string",
}
"""The text for each finish reason."""


def run(settings: Generate) -> None:
    """Generates a text for every prompt and prints it; statistics go to stderr."""
    prompts = prompts_of(settings)
    refuse_stateful("repetition_penalty", settings.repetition_penalty)
    warn_if_greedy(settings.sampling)
    if settings.show_drafts and settings.format == "json":
        raise ValueError("--format json has no drafts: leave out --show-drafts")
    if settings.stream and (settings.prompts or settings.show_drafts or settings.format == "json"):
        raise ValueError("--stream takes one --prompt: leave out --prompts, --show-drafts and --format json")
    if settings.batch_size is not None:
        integer("batch_size", settings.batch_size, 1)
    mesh = settings.devices.open(several=True)
    together = min(settings.batch_size or TOGETHER, len(prompts))
    loading = {"dtype": settings.dtype, "mesh": mesh, "quantize": settings.quantize}
    engine = Engine.calibrated(settings.target, settings.method, batch_size=together, **loading)
    options = {"sampling": settings.sampling, "chat": settings.chat, "truncate": settings.truncate}
    options |= {"chat_args": settings.template.format.arguments, "system": settings.template.system}
    options |= {"stop": settings.stop}
    if settings.show_drafts and engine.model.tokenizer is None:
        raise ValueError(f"{settings.target} has no tokenizer, so it cannot show drafts as text")
    if settings.stream:
        for piece in engine.stream(prompts[0], **options):
            print(piece, end="", flush=True)
        print()
        return
    found = engine.generate_iter(
        prompts,
        batch_size=settings.batch_size,
        record=settings.show_drafts,
        keep_state=settings.keep_state,
        **options,
    )
    for prompt, generation in zip(prompts, in_order(found), strict=True):
        show(settings, engine.model.tokenizer, prompt, generation)


def in_order(found: Iterable[tuple[int, Generation]]) -> Iterator[Generation]:
    """The results in the order of the prompts, each as soon as all before it are finished."""
    early, following = {}, 0
    for place, generation in found:
        early[place] = generation
        while following in early:
            yield early.pop(following)
            following += 1


def prompts_of(settings: Generate) -> list[str]:
    """The prompts that the options name. Raises ValueError if they name none or two kinds, or do not fit."""
    if settings.prompts is not None and settings.prompt is None:
        questions = read_questions(settings.prompts, settings.limit)
        if several := sum(len(question.turns) > 1 for question in questions):
            say(f"warning: questions of {settings.prompts} with several turns: {several}; only first turns are used")
        return [question.turns[0] for question in questions]
    if settings.prompt is not None and settings.prompts is None:
        check_unused(settings, "--prompt", "limit", "batch_size", "keep_state")
        return [settings.prompt]
    raise ValueError("give either --prompt TEXT or --prompts FILE")


def show(settings: Generate, tokenizer: Any, prompt: str, generation: Generation) -> None:
    """Prints one result in the format of `settings`."""
    if settings.format == "json":
        print(json.dumps(to_json(prompt, generation), ensure_ascii=False))
    elif settings.show_drafts:
        colours = has_colours(console := Console())
        print_text(console, coloured(generation, tokenizer, rejected=True, colours=colours))
        say(legend(colours))
    else:
        print(generation.text)
    found = generation.statistics
    ended = ENDED[generation.finish_reason]
    say(f"{len(generation.tokens)} tokens in {found.rounds} rounds, tau {found.tau:.2f}; {ended}")


def to_json(prompt: str, generation: Generation) -> dict[str, Any]:
    """The line that `--format json` prints for one prompt."""
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
