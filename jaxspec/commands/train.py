"""The command `jaxspec-train`."""

from jaxspec.commands.console import carry_out, run
from jaxspec.train.options import (
    Calibrator,
    Dflash,
    DraftModel,
    Eagle,
    Eagle3,
    EarlyExit,
    Edd,
    Generate,
    LayerSkip,
    Lm,
    Medusa,
    SkipSearch,
)

COMMANDS = {
    "lm": (Lm, "train.methods.lm.train"),
    "eagle": (Eagle, "train.methods.eagle.train"),
    "eagle3": (Eagle3, "train.methods.eagle3.train"),
    "dflash": (Dflash, "train.methods.dflash.train"),
    "draft-model": (DraftModel, "train.methods.draft_model.train"),
    "early-exit": (EarlyExit, "train.methods.early_exit.train"),
    "edd": (Edd, "train.methods.edd.train"),
    "medusa": (Medusa, "train.methods.medusa.train"),
    "layer-skip": (LayerSkip, "train.methods.kept_blocks.train"),
    "skip-search": (SkipSearch, "train.methods.skip_search.search"),
    "calibrator": (Calibrator, "train.methods.acceptance_predictor.train"),
    "generate": (Generate, "train.methods.generation.generate"),
}


def main() -> None:
    """Entry point of the console script."""
    run(lambda: carry_out("jaxspec-train", "Train draft heads and small LLaMAs, and generate training data.", COMMANDS))


if __name__ == "__main__":
    main()
