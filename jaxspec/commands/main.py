"""The command `jaxspec`."""

import sys

import jaxspec
from jaxspec.commands.console import carry_out, parse, run
from jaxspec.options import by_command as options

COMMANDS = {
    "generate": (options.Generate, "commands.generate.run"),
    "chat": (options.Chat, "commands.chat.run"),
    "bench": (options.Bench, "commands.bench.run"),
    "verify": (options.Verify, "verify.run.run"),
    "eval": (options.Eval, "evaluate.evaluation.run"),
    "sweep": (options.Sweep, "evaluate.sweep.run"),
    "report": (options.Report, "report.page.run"),
    "calibrate": (options.Calibrate, "evaluate.calibrate.run"),
    "warmup": (options.Warmup, "commands.warmup.run"),
    "plan": (options.PlanSettings, "planning.plan.run"),
    "methods": (options.Methods, "commands.methods.run"),
    "env": (options.Env, "commands.env.run"),
    "demo": (options.Demo, "commands.demo.run"),
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

    comparison.run(parse(options.Compare, "jaxspec bench", sys.argv[2:]))


if __name__ == "__main__":
    main()
