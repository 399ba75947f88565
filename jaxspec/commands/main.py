"""The command `jaxspec`."""

import sys

import jaxspec
from jaxspec.commands.console import carry_out, run
from jaxspec.options import by_command as options

COMMANDS = {
    "generate": (options.Generate, "commands.generate.run"),
    "get": (options.Get, "commands.get.run"),
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
INSTEAD = {  # by (command, option): options that replace all others of the command, required ones too
    ("bench", "--compare"): (options.Compare, "evaluate.comparison.run"),
    ("eval", "--merge"): (options.Merge, "evaluate.evaluation.merge"),
}


def main() -> None:
    """Entry point of the console script."""
    if sys.argv[1:] == ["--version"]:
        run(lambda: print(f"jaxspec {jaxspec.__version__}"))
    options = {word.partition("=")[0] for word in sys.argv[2:]}
    chosen = {name: kind for (name, option), kind in INSTEAD.items() if option in options and name == sys.argv[1]}
    commands = COMMANDS | chosen
    run(lambda: carry_out("jaxspec", "Lossless speculative decoding for LLaMA models.", commands))


if __name__ == "__main__":
    main()
