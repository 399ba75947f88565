"""The command `jaxspec`."""

import importlib.metadata
import sys
from typing import TYPE_CHECKING, Annotated, Any

from tyro import conf

from jaxspec.commands.console import parse, run
from jaxspec.evaluate.settings import Bench, Calibrate, Compare, Sweep
from jaxspec.planning.settings import PlanSettings
from jaxspec.report.settings import Report

if TYPE_CHECKING:
    from jaxspec.engine.generation import Generation
from jaxspec.commands.settings import Demo, Env, Generate, Methods


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
    | Annotated[Report, conf.subcommand("report")]
    | Annotated[Calibrate, conf.subcommand("calibrate")]
    | Annotated[PlanSettings, conf.subcommand("plan")]
    | Annotated[Methods, conf.subcommand("methods")]
    | Annotated[Env, conf.subcommand("env")]
    | Annotated[Demo, conf.subcommand("demo")]
)


def main() -> None:
    """Entry point of the console script."""
    if sys.argv[1:] == ["--version"]:
        print(f"jaxspec {importlib.metadata.version('jaxspec')}")
        return
    if sys.argv[1:2] == ["bench"] and "--compare" in sys.argv:  # which takes no other options, not even needed ones
        run(lambda: parse(Compare, "jaxspec bench", "Two results side by side.", sys.argv[2:]).run())
    run(lambda: parse(Command, "jaxspec", "LLaMA text several times faster, not one token changed.").run())


if __name__ == "__main__":
    main()
