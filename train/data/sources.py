"""What there is to train on: documents and conversations, some of them held out, some written by a target."""

import dataclasses
from collections.abc import Sequence

from jaxspec.train.data import records
from jaxspec.train.data.records import Conversation
from jaxspec.train.data.text import Document, is_held_out, standard_library
from jaxspec.train.settings.data import STDLIB, Data, DataMixture

Texts = Sequence[Document | Conversation]


@dataclasses.dataclass(frozen=True)
class Sources:
    """What to train on.

    Attributes:
        found: those whose name `is_held_out` only measure the result.
        generated: what a target wrote; none of it is held out.
        share: how much of the training windows are to be `generated`.
        strict: refuse the first conversation that the chat template cannot write.
    """

    found: Texts
    generated: Texts = ()
    share: float = 0.0
    strict: bool = False


def read(settings: Data) -> Texts:
    """The documents and conversations of a file or folder, or of the standard library.

    Raises:
        ValueError: nothing is there or can be used, or one record cannot and `strict` is set.
    """
    if str(settings.data) == STDLIB:
        return standard_library()
    return records.read(settings.data, settings.strict)


def sources_of(settings: DataMixture) -> Sources:
    """What is open and what is generated; raises as `read`."""
    if settings.open_data is None:
        return Sources(read(settings), strict=settings.strict)
    found = read(Data(settings.open_data, settings.strict))
    return Sources(found, read(settings), settings.generated_share, settings.strict)


def split(found: Texts) -> tuple[Texts, Texts]:
    """What to train on and what is held out. Raises ValueError where nothing is left to train on."""
    kept = [each for each in found if not is_held_out(each.name)]
    if not kept:
        raise ValueError("there is too little text: every file in it is one that is held out; add text")
    return kept, [each for each in found if is_held_out(each.name)]
