"""The command `jaxspec-train`."""

from jaxspec.commands.console import carry_out, run
from jaxspec.train import decoding_options, options

COMMANDS = {
    "lm": (options.Lm, "train.methods.lm.train"),
    "eagle": (options.Eagle, "train.methods.eagle.train"),
    "eagle3": (options.Eagle3, "train.methods.eagle3.train"),
    "dflash": (options.Dflash, "train.methods.dflash.train"),
    "draft-model": (options.DraftModel, "train.methods.draft_model.train"),
    "early-exit": (options.EarlyExit, "train.methods.early_exit.train"),
    "edd": (options.Edd, "train.methods.edd.train"),
    "medusa": (options.Medusa, "train.methods.medusa.train"),
    "layer-skip": (options.LayerSkip, "train.methods.kept_blocks.train"),
    "skip-search": (decoding_options.SkipSearch, "train.methods.skip_search.search"),
    "calibrator": (decoding_options.Calibrator, "train.methods.acceptance_predictor.train"),
    "generate": (decoding_options.Generate, "train.methods.generation.generate"),
}


def main() -> None:
    """Entry point of the console script."""
    run(lambda: carry_out("jaxspec-train", "Train draft heads and small LLaMAs, and generate training data.", COMMANDS))


if __name__ == "__main__":
    main()
