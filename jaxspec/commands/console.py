"""Shared by the three commands: parses arguments, and turns every error into one sentence.

Exit codes: 2 for bad input, 1 for a failure, 130 for Ctrl-C. The sentence is the last line of stderr.
"""

import contextlib
import difflib
import importlib
import io
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NoReturn, Union

import tyro

from jaxspec.commands import help_texts
from jaxspec.host import buckets, shared_exit
from jaxspec.host.jax_environment import COMPILER, expect_no_chip, give_threads

BAD_INPUT = (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
_BOX = re.compile(r"[─━═╭╮╰╯│┃╞╡├┤]+|-{4,}|^[|+]|[|+]$", re.MULTILINE)  # the ASCII ones without UTF-8
_OWN_CHECK = re.compile(r"Error parsing (?!-)[\w-]+: (.*?)\.? For full helptext")
"""An error that a dataclass of options raised. tyro names the field that holds it."""

_HELP = re.compile(r"\.? For full helptext, (?:run|see):? ")
_WRONG_VALUE = re.compile(r"Error parsing (?P<option>--[\w-]+): (?P<why>.*?)(?P<value>['\"].*['\"])\W*$")
_WRONG_CHOICE = re.compile(r"invalid choice (?P<value>.*) for argument '(?P<option>.*)'\. Expected (?P<choices>.*)")
_NO_VALUE = re.compile(r"Missing value for argument '([^']*)'")
_KINDS = {"INT [": "whole numbers, with spaces between", "int": "a whole number", "INT": "a whole number",
          "float": "a number", "FLOAT": "a number"}  # fmt: skip
"""What a value must be, by a word in tyro's message."""
_OPTION = re.compile(r"(?<= )(--[a-z][a-z-]*) (?=[{[A-Z])")
_ARGUMENT = re.compile(r" *([A-Z]+) ")  # a positional one, at the beginning of its description


def run(command: Callable[[], Any]) -> NoReturn:
    """Runs a command and exits; every exception becomes one sentence and an exit code.

    ValueError is what the library raises for bad input. With JAXSPEC_TRACEBACK set, a traceback precedes the sentence.
    """
    try:
        _run(command)
    except SystemExit as exit_:
        if exit_.code and (watching := shared_exit.running()):
            watching.leave()
        if exit_.code and any(thread.name.startswith(COMPILER) for thread in threading.enumerate()):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(exit_.code))
        raise


def _run(command: Callable[[], Any]) -> NoReturn:
    # So that a terminated run cleans up like an interrupted one.
    before = signal.signal(signal.SIGTERM, lambda number, _: fail("terminated", 128 + number))
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # of missing PyTorch, which is not needed
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # of prompts that are too long: jaxspec reports these
    expect_no_chip()
    give_threads()
    sys.unraisablehook = _unless_loop_is_closed
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs a traceback in each thread
    try:
        try:
            command()
            buckets.flush()
        except SystemExit:
            _flush_output()
            raise
        _flush_output()  # here, since errors of the interpreter's own flush at the end are not caught
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of the pipe has ended: no message.
        if watching := shared_exit.running():
            watching.record("", 1)
        sys.exit(1)
    except Exception as error:
        if shared_exit.running() and "Gloo" in str(error):  # a ValueError now and then
            fail(f"error: another process ended without an error message; perhaps it was killed ({_text(error)})", 1)
        if (ended := _ENDED.search(str(error))) and ended[1]:
            sys.exit(int(ended[1]))  # the reason is printed already
        if ended:
            fail("interrupted", 130)
        fail(_sentence(error), 2 if isinstance(error, BAD_INPUT) else 1)
    finally:
        with contextlib.suppress(OSError):  # the reason why the command failed is printed already
            buckets.flush()
        try:
            _flush_output()
        except OSError:  # the interpreter would try again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        signal.signal(signal.SIGTERM, before)
    sys.exit(0)


def _flush_output() -> None:
    """Writes what was printed. Raises OSError that names stdout."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        error.filename = "stdout"
        raise


_ENDED = re.compile(r"static arguments.*^(?:KeyboardInterrupt|SystemExit: (\d+))", re.DOTALL | re.MULTILINE)
"""JAX's ValueError where Ctrl-C or termination came while it compared static arguments."""


def _unless_loop_is_closed(unraisable: Any) -> None:
    """Drops errors about a closed event loop: after a failed read Orbax causes one for each parameter."""
    if "Event loop is closed" not in str(unraisable.exc_value):
        sys.__unraisablehook__(unraisable)


def carry_out(prog: str, description: str, commands: Mapping[str, tuple[type, str]]) -> None:
    """Parses a command line and runs its command: of `commands`, by name, the options' dataclass and the function.

    The function is given as `module.function` and imported when it runs, so `--help` does not load JAX.
    """
    name = next(iter(sys.argv[1:]), "")
    if name in commands:
        kind, work = commands[name]
        options = parse(kind, f"{prog} {name}", sys.argv[2:])
        module, _, function = work.rpartition(".")
        getattr(importlib.import_module(f"jaxspec.{module}"), function)(buckets.with_paths(options))
    elif name in ("-h", "--help"):
        listed = tuple(
            Annotated[kind, tyro.conf.subcommand(name, description=help_texts.summary(kind))]
            for name, (kind, _) in commands.items()
        )
        description += f" `{prog} COMMAND --help` shows a command's options, with an example."
        parse(Union[listed], prog, sys.argv[1:], description)  # noqa: UP007 (made at run time)
    else:
        close = difflib.get_close_matches(name, commands, n=1)
        meant = f"perhaps you meant {close[0]}" if close else f"commands: {', '.join(commands)}"
        what = f"unknown command {name}" if name else "no command is given"
        fail(f"error: {what}; {meant}; see {prog} --help", 2)


def parse(kind: Any, prog: str, args: Sequence[str], description: str | None = None) -> Any:
    """tyro's parse of the arguments into `kind`; its box of an error becomes one sentence and exit code 2."""
    box = io.StringIO()
    help_texts.prepare(kind, texts=not {"-h", "--help"}.isdisjoint(args))
    try:
        with contextlib.redirect_stderr(box):
            config = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone)
            return tyro.cli(kind, prog=prog, description=description, args=args, config=config)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        fail(_unbox(box.getvalue()), 2)


def fail(sentence: str, code: int) -> NoReturn:
    """Prints a sentence as the last line of stderr and exits. Of several processes, one prints it and all exit."""
    if os.environ.get("JAXSPEC_TRACEBACK") and sys.exc_info()[0] is not None:
        traceback.print_exc(file=sys.__stderr__ if shared_exit.running() else None)
    if watching := shared_exit.running():
        watching.record(sentence, code)
    else:
        print(sentence, file=sys.stderr, flush=True)
    if code != 2 and sys.stderr is sys.__stderr__:
        # Threads of an interrupted write log further errors; the sentence must stay the last line.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(code)


def _sentence(error: BaseException) -> str:
    """The message of an exception, on one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"error: {where}{error.strerror}"
    text = _text(error)
    if type(error).__module__ in ("builtins", "jaxlib._jax") and not isinstance(error, ValueError):
        text = f"{type(error).__name__}: {text} (set JAXSPEC_TRACEBACK=1 to see where)"
    return f"error: {text}"


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())


def _unbox(text: str) -> str:
    """The sentence in a tyro box, without rules, borders and the lists below the first rule."""
    text = " ".join(_BOX.sub(" ", text.partition("\n")[2]).split())
    if found := _OWN_CHECK.search(text):
        return f"error: {found[1]}"
    text, _, see = _HELP.sub("; see ", text).rpartition("; see ")
    if text.startswith("Missing from"):
        text, _, unknown = text.partition(" Unrecognized options: ")
        where, _, listed = text.partition(": ")
        named = (_OPTION.search(f" {part}") or _ARGUMENT.match(part) for part in listed.split("(required)"))
        text = f"{where}: {', '.join(name[1] for name in named if name)}"
        text += f"; unrecognized options: {unknown}" if unknown else ""
    elif text.startswith("Unrecognized options: "):
        text, _, similar = text.partition(" Perhaps you meant: ")
        typed = next((word for word in re.split("[ ,=]+", text) if word.startswith("--")), "")
        close = difflib.get_close_matches(typed, _OPTION.findall(f" {similar}"), n=1)
        text += f"; perhaps you meant {close[0]}" if close else ""
    elif text.startswith("Error parsing"):
        text = re.split(" (?:Got errors|Argument helptext):", text)[0]
        if found := _WRONG_VALUE.match(text):
            kind = next((words for name, words in _KINDS.items() if name in found["why"]), None)
            must = f"cannot be {found['value']}" if kind is None else f"must be {kind}, not {found['value']}"
            text = f"{found['option']} {must}"
    elif found := _WRONG_CHOICE.match(text):
        choices = sorted({*re.findall(r"'([^']+)'", found["choices"])} - {"None"})  # None: the option is omitted
        text = f"{found['option']} must be one of {', '.join(choices)}, not {found['value']}"
    elif found := _NO_VALUE.match(text):
        text = f"{found[1]} needs a value"
    return f"error: {text.rstrip(' .')}; see {see}"
