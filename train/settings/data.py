"""Options for the training data."""

import dataclasses
from pathlib import Path

from jaxspec.engine.chat_options import ChatOptions
from jaxspec.train.settings.spelling import require

STDLIB = "stdlib"


@dataclasses.dataclass(frozen=True)
class Data(ChatOptions):
    """Training data."""

    data: Path = Path(STDLIB)
    """Folder of text, such as a source tree; or a file with plain text, JSONL with {"text": ...} or {"messages": ...}
    per line, or ShareGPT's JSON; or `stdlib`, the source of this Python's standard library. A hash of the name selects
    one file or record in 40 for measurements; it is not trained on."""
    strict: bool = False
    """Stop at the first bad record. Default: report bad records and skip them."""


@dataclasses.dataclass(frozen=True)
class DataMixture(Data):
    """Training data of a head."""

    open_data: Path | None = None
    """Open text to mix with generated text, given as in --data; --data is then the output of `jaxspec-train generate`.
    One file or record in 40 of the open text is held out, and none of the generated text. So runs with and without
    generated text are comparable."""
    generated_share: float = 0.5
    """Share of training windows from generated text, if --open-data is given. The rest is open text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, lambda share: 0 < share < 1, "be between 0 and 1", "generated_share")
