"""`jaxspec chat`: a conversation with a model, line by line."""

import contextlib
import dataclasses
import io
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from jaxspec.engine.continuous_batching import snapshots
from jaxspec.engine.engine import Engine
from jaxspec.engine.generation import Generation
from jaxspec.engine.prefix_cache import PromptMemory
from jaxspec.engine.requests import encode, requests_of, warn_if_greedy
from jaxspec.engine.session import Session
from jaxspec.engine.statistics import statistics_of
from jaxspec.engine.stop_strings import ShownText, StopStrings
from jaxspec.host.arguments import integer
from jaxspec.host.terminal import say
from jaxspec.options.by_command import Chat
from jaxspec.report.draft_colours import coloured_pieces, has_colours, legend, print_text

ROUNDS = 4  # between two looks at the text
HELP = """/stats   tokens, rounds, tau and tokens/s of the last answer and of the conversation
/drafts  show or hide drafts in the answers
/reset   start a new conversation
/quit    leave; so does the end of the input
Ctrl-C   stops an answer, but not the conversation"""


@dataclasses.dataclass
class Conversation:
    """A conversation, with the statistics of its answers and the cache of its last prompt."""

    engine: Engine
    messages: list[dict[str, str]] = dataclasses.field(default_factory=list)  # questions and answers in turn
    answers: list[Generation] = dataclasses.field(default_factory=list)
    memory: PromptMemory = dataclasses.field(default_factory=PromptMemory)


def run(settings: Chat) -> None:
    """Reads lines from stdin and answers each on stdout, until the input ends; remarks go to stderr."""
    integer("max_new_tokens", settings.sampling.max_new_tokens, 1)
    warn_if_greedy(settings.sampling)
    mesh = settings.devices.open()
    loading = {"dtype": settings.dtype, "mesh": mesh, "quantize": settings.quantize}
    engine = Engine.calibrated(settings.target, settings.method, **loading)
    if engine.model.tokenizer is None:
        raise ValueError(f"{settings.target} has no tokenizer, which a chat needs")
    say(f"{settings.target}, {engine.method}; /help lists the commands")
    if settings.template.format and not engine.model.tokenizer.chat_template:
        raise ValueError(f"{settings.target} has no chat template, so leave out --system and --chat-arg")
    if settings.template.format:  # an error if the chat template does not take it
        encode([[{"role": "user", "content": "x"}]], engine.model, True, settings.template.format)
    if engine.model.tokenizer.chat_template:
        engine.warn_of_chat_args(settings.template.format.arguments)
    else:
        say("the tokenizer has no chat template: the model continues the text of the conversation")
    talk, drafts = Conversation(engine), settings.show_drafts
    for line in lines():
        command = line.strip()
        if command == "/quit":
            return
        if command == "/reset":
            talk = Conversation(engine)
        elif command == "/drafts":
            drafts = not drafts
            say(f"drafts are {'shown' if drafts else 'hidden'}")
        elif command == "/stats":
            say(stats(talk))
        elif command.startswith("/"):
            say(HELP if command == "/help" else f"there is no command {command}; /help lists them")
        elif command:
            try:
                answer(talk, line, settings, drafts)
            except ValueError as error:  # the prompt is too long, or its template does not take it
                say(f"error: {error}")
            except KeyboardInterrupt:
                say("stopped")


def lines() -> Iterator[str]:
    """The lines of stdin; a terminal gets a prompt for each."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (lines can then be edited)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # bytes that are no text are an error of their line only
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return


def answer(talk: Conversation, line: str, settings: Chat, drafts: bool) -> None:
    """Answers one line. An answer that fails leaves the messages as they were."""
    has_template = bool(talk.engine.model.tokenizer.chat_template)
    messages = [*talk.messages, {"role": "user", "content": line if has_template else line + "\n"}]
    prompt = messages if has_template else "".join(message["content"] for message in messages)
    try:
        (tokens,) = encode([prompt], talk.engine.model, has_template, settings.template.format)
        session = begin(talk, tokens, settings, drafts)
        with until_interrupted() as interrupted:
            *_, (found, final) = print_answer(session, drafts, interrupted)
    except BaseException:
        talk.memory = PromptMemory()
        raise
    talk.answers.append(found)
    talk.messages = [*messages, {"role": "assistant", "content": found.text}]
    if not final:
        say("stopped")


def begin(talk: Conversation, tokens: list[int], settings: Chat, record: bool) -> Session:
    """Reads the conversation. An answer takes at most half of the model's free positions, so that others can follow."""
    positions = talk.engine.model.config.model.usable_length
    if (room := (positions - len(tokens)) // 2) < 1:
        raise ValueError(
            f"the conversation has {len(tokens)} tokens, which leaves no room for an answer: the model has {positions} "
            "positions; /reset starts a new conversation"
        )
    sampling = dataclasses.replace(settings.sampling, max_new_tokens=min(settings.sampling.max_new_tokens, room))
    requests = requests_of(talk.engine.model, [tokens], sampling=sampling)
    return talk.engine.session(requests, record=record, memory=talk.memory)


def print_answer(session: Session, drafts: bool, interrupted: Callable[[], bool]) -> Iterator[tuple[Generation, bool]]:
    """Prints an answer while it is decoded. Yields it after each piece, and whether it is complete."""
    tokenizer, console = session.model.tokenizer, Console()
    in_colour, shown, printed = has_colours(console), ShownText(tokenizer), 0
    for found, final in snapshots(session, StopStrings((), tokenizer), ROUNDS):
        if drafts:
            texts = coloured_pieces(found, tokenizer, True, in_colour)
            for text in texts[printed:]:
                print_text(console, text, end="")
            printed = len(texts)
        else:
            for piece in shown.more(found.text, final=final, hold=0):
                print(piece, end="", flush=True)
        yield found, final
        if interrupted():
            break
    console.print()
    if drafts:
        say(legend(in_colour))


@contextlib.contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """Remembers Ctrl-C instead of raising it, so that it breaks off no call on the device. A second one is raised."""
    pressed = False

    def remember(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def stats(talk: Conversation) -> str:
    """Two lines: the last answer, and the conversation."""
    if not talk.answers:
        return "there is no answer yet"
    last = talk.answers[-1]
    read = f"{len(last.prompt_tokens)} prompt tokens, {talk.memory.reused} of them from the cache"
    return f"answer: {_counts([last])}, {read}\nconversation: {_counts(talk.answers)}"


def _counts(found: Sequence[Generation]) -> str:
    counts = statistics_of([generation.history for generation in found])
    seconds = sum(generation.decode_seconds for generation in found)
    tokens = sum(len(generation.tokens) for generation in found)
    speed = counts.tokens / seconds if seconds else 0.0
    return f"{tokens} tokens, {counts.rounds} rounds, tau {counts.tau:.2f}, {speed:.0f} tokens/s"
