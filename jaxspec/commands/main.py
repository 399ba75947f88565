"""The command `jaxspec`."""

import sys

import jaxspec
from jaxspec.commands.console import carry_out, parse, run
from jaxspec.options.main import (
    Bench,
    Calibrate,
    Chat,
    Compare,
    Demo,
    Env,
    Eval,
    Generate,
    Methods,
    PlanSettings,
    Report,
    Sweep,
    Verify,
)

COMMANDS = {
    "generate": (Generate, "commands.generate.run"),
    "chat": (Chat, "commands.chat.run"),
    "bench": (Bench, "commands.bench.run"),
    "verify": (Verify, "verify.run.run"),
    "eval": (Eval, "evaluate.evaluation.run"),
    "sweep": (Sweep, "evaluate.sweep.run"),
    "report": (Report, "report.page.run"),
    "calibrate": (Calibrate, "evaluate.calibrate.run"),
    "plan": (PlanSettings, "planning.plan.run"),
    "methods": (Methods, "commands.methods.run"),
    "env": (Env, "commands.env.run"),
    "demo": (Demo, "commands.demo.run"),
}


def main() -> None:
    """Entry point of the console script."""
    if sys.argv[1:] == ["--version"]:
        print(f"jaxspec {jaxspec.__version__}")
        return
    if sys.argv[1:2] == ["bench"] and "--compare" in sys.argv:  # which takes no other options, not even needed ones
        run(compare)
    run(lambda: carry_out("jaxspec", "Fast text from LLaMA models by lossless speculative decoding.", COMMANDS))


def compare() -> None:
    """`jaxspec bench --compare`."""
    from jaxspec.evaluate import comparison

    comparison.run(parse(Compare, "jaxspec bench", sys.argv[2:]))


if __name__ == "__main__":
    main()
