"""`jaxspec-train generate`: a target writes text to train its heads on.

The target accepts more from heads that were trained on its own text (EESD, arXiv:2406.03853, §3.2). The first tokens of
each text are greedy, as the target would most likely begin it, and the rest are sampled, so that all texts differ. The
prompts are cut from data, or the target writes them itself.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from jaxspec.decoding.request import Request
from jaxspec.engine.engine import Engine
from jaxspec.engine.stop_strings import text_of
from jaxspec.host.atomic import check_new, write_whole
from jaxspec.host.json_lines import LineLog, to_line
from jaxspec.host.processes import broadcast_from_first, is_first
from jaxspec.host.terminal import progress, say
from jaxspec.train.data import self_prompts
from jaxspec.train.data.prompts import Prompt, hash_of, load_prompts, load_with_tokenizer
from jaxspec.train.data.records import ASSISTANT, Message
from jaxspec.train.data.screening import LEFT_OUT, Screen, of_questions
from jaxspec.train.decoding_options import Generate
from jaxspec.train.run.folder import as_typed, hashes

BATCHES = 4  # batches of texts in one call: a new text takes the row of a finished one


def generate(settings: Generate) -> None:
    """Writes `settings.out`, one text per line; see `record`."""
    mesh = settings.devices.open(several=True)
    broadcast_from_first(lambda: check_new(settings.out))
    model = load_with_tokenizer(settings.target, settings.dtype, mesh)
    engine = Engine.calibrated(model, settings.method, batch_size=settings.batch_size)
    count, length, seed = settings.samples, settings.prompt_tokens, settings.sampling.seed
    screen = Screen(of_questions(settings.exclude))
    if settings.self_prompts is not None:
        screen = dataclasses.replace(screen, most_loops=settings.max_loops, repeats=False)
        prompts = self_prompts.headers(model, settings.data.format, settings.self_prompts)
    else:
        prompts = load_prompts(settings.prompts, settings.data, model, count, length, seed, settings.chat)
    if settings.chat or settings.self_prompts is not None:
        engine.warn_of_chat_args(settings.data.format.arguments)
    write(engine, settings, prompts, screen)


def write(engine: Engine, settings: Generate, prompts: Sequence[Prompt], screen: Screen) -> None:
    """Writes the texts of prompts, or with `self_prompts` the conversations that begin with these headers.

    Until all texts are complete they are in OUT.part. The same call resumes from it, and ends with the same bytes.
    Several processes decode together, and the first writes.
    """
    out, size = settings.out, settings.batch_size * BATCHES
    decided = {
        **as_typed("generate", settings, engine.model.target.dtype.name),
        "--method": str(engine.named),
        **hashes(engine.model.path),
        **hash_of(prompts),
    }
    log = LineLog(out.with_name(out.name + ".part"), "what a killed `generate` left", "another OUT")
    lines = broadcast_from_first(lambda: log.resume(decided, size))  # so batches are those of an uninterrupted run
    for line in lines:
        if LEFT_OUT not in line:
            screen.screened(line)
    before, total, tokens, began = len(lines), len(prompts), 0, time.monotonic()
    with progress("text", total, before) as line:
        for first in range(before, total, size):
            some: Sequence[Prompt | None] = prompts[first : first + size]
            if settings.self_prompts is not None:
                some = with_turns(engine, settings, prompts[first : first + size], first)
            texts = go_on(engine, settings, [prompt.tokens if prompt else [] for prompt in some], first)
            made = [
                screen.screened(record(engine, prompt, text)) if prompt else {LEFT_OUT: "unusable turns"}
                for prompt, text in zip(some, texts, strict=True)
            ]
            if is_first():
                log.append(made)
            lines += made
            tokens += sum(map(len, texts))
            line.report(len(lines), f"{tokens / (time.monotonic() - began):,.0f} tokens/s")
    kept, about = [line for line in lines if LEFT_OUT not in line], screen.summary(lines)
    if not kept:
        raise ValueError(f"no text is left to write into {out}: {about}")
    if is_first():
        write_whole(out, "".join(map(to_line, kept)))
        log.path.unlink()
    ended = sum(line["complete"] for line in kept)
    say(f"wrote {out}: {len(kept)} texts by {engine.method}, {ended} of them complete; {about}")


def with_turns(engine: Engine, settings: Generate, headers: Sequence[Prompt], first: int) -> list[Prompt | None]:
    """Samples a user's turn after each header: the prompt for its answer, None for a turn that is of no use."""
    model, turn = engine.model, dataclasses.replace(self_prompts.TURN, seed=settings.sampling.seed + self_prompts.SEED)
    requests = [Request(header.tokens, turn, index=first + row) for row, header in enumerate(headers)]
    found = []
    for header, generation in zip(headers, engine.run(requests, settings.batch_size), strict=True):
        ended = is_complete(engine, generation.tokens)
        tokens = generation.tokens[: len(generation.tokens) - ended]
        found.append(self_prompts.prompt_after(header, tokens, ended, model, settings.data.format))
    return found


def go_on(engine: Engine, settings: Generate, prompts: Sequence[list[int]], first: int) -> list[list[int]]:
    """Token ids generated for prompts from number `first` on, greedy and then sampled; none for an empty prompt."""
    room, sampling = engine.model.config.model.usable_length, settings.sampling
    texts: list[list[int]] = [[] for _ in prompts]
    for temperature, length in ((0.0, settings.greedy_tokens), (sampling.temperature, sampling.max_new_tokens)):
        requests = {}
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            left = min(length, sampling.max_new_tokens, room - len(prompt)) - len(text)
            if prompt and left > 0 and not is_complete(engine, text):
                part = dataclasses.replace(sampling, max_new_tokens=left, temperature=temperature)
                requests[row] = Request(prompt + text, part, index=first + row)
        if requests:
            for row, generation in zip(requests, engine.run(list(requests.values()), settings.batch_size), strict=True):
                texts[row] += generation.tokens
    return texts


def is_complete(engine: Engine, text: Sequence[int]) -> bool:
    """Whether a text ends with EOS."""
    return bool(text) and text[-1] in engine.model.config.eos


def record(engine: Engine, prompt: Prompt, generated: list[int]) -> dict[str, Any]:
    """The line of a text: {"text": prompt and generated text, "prompt": …, "complete": whether it ended}.

    A conversation has {"messages": [...]} instead. Special tokens are left out, and a partial character at the end.
    """
    tokenizer, complete = engine.model.tokenizer, is_complete(engine, generated)
    kept = generated[: len(generated) - complete]
    whole = lambda text: text if complete else text.rstrip("\ufffd")
    if prompt.messages:
        answer = Message(ASSISTANT, whole(text_of(tokenizer, kept, prompt.tokens)))
        messages = [dataclasses.asdict(each) for each in (*prompt.messages, answer)]
        return {"messages": messages, "complete": complete}
    text = whole(text_of(tokenizer, prompt.tokens + kept, []))
    return {"text": text, "prompt": text_of(tokenizer, prompt.tokens, []), "complete": complete}
