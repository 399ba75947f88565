"""Options that say what to train on."""

import dataclasses
from pathlib import Path

from jaxspec.train.settings.spelling import require

STDLIB = "stdlib"


@dataclasses.dataclass(frozen=True)
class Data:
    """What to train on."""

    data: Path = Path(STDLIB)
    """Folder of text, such as a source tree; or a file: plain text, JSONL with {"text": ...} or {"messages": ...} a
    line, or ShareGPT's JSON; or `stdlib`, the source of this Python's standard library. What is named so that a hash
    picks it, one file or record in 40, is held out: it only measures."""
    strict: bool = False
    """Refuse the data for its first bad record, instead of skipping and naming it."""


@dataclasses.dataclass(frozen=True)
class DataMixture(Data):
    """What to train a head on."""

    open_data: Path | None = None
    """Open text to mix into the data, which is what `jaxspec-train generate` wrote then: named like --data, `stdlib`
    too. One file or record in 40 of it is held out, and nothing of the generated text, so that runs with and without
    that can be compared."""
    generated_share: float = 0.5
    """Of the training windows; the rest is open text. Only with --open-data."""

    def __post_init__(self) -> None:
        require(self, lambda share: 0 < share < 1, "be between 0 and 1", "generated_share")
