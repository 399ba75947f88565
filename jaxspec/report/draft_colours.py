"""Generated text with its drafts in colour."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.text import Text

from jaxspec.engine.generation import Generation
from jaxspec.engine.recorded_rounds import Round

STYLES = {"prefill": "bold", "accepted": "green", "bonus": "bold blue", "rejected": "dim red strike"}
LEGEND = "green: drafted and accepted, blue: from the target (the bonus token), struck out: drafted and rejected"


def coloured(generation: Generation, tokenizer: Any, rejected: bool) -> Text:
    """The text of a generation that was recorded, token by token; with the `rejected` drafts in between, if wanted."""
    text = Text()
    for kind, tokens in pieces(generation, rejected):
        text.append(tokenizer.decode(tokens), style=STYLES[kind])
    return text


def pieces(generation: Generation, rejected: bool) -> Iterator[tuple[str, list[int]]]:
    """(kind, tokens) in the order of the text: prefill's token, then each round's accepted, rejected and bonus ones."""
    if generation.rounds is None:
        raise ValueError("drafts are shown of generations made with record=True")
    yield "prefill", generation.tokens[:1]
    for at, one in enumerate(generation.rounds):
        accepted = int(generation.history.accepted[at])
        yield "accepted", one.committed[:accepted]
        if rejected and (missed := rejected_path(one, accepted)):
            yield "rejected", missed
        yield "bonus", one.committed[accepted:]


def rejected_path(one: Round, accepted: int) -> list[int]:
    """The most confident drafted continuation of the accepted path that the target refused.

    None where the text's end cut the round, so that it has no bonus token: on what lies deeper there is no verdict.
    """
    if len(one.committed) <= accepted:
        return []
    node, missed = int(np.flatnonzero(one.accepted)[-1]), []
    while len(children := np.flatnonzero(one.parent == node)):
        node = int(children[one.log_confidence[children].argmax()])
        missed.append(int(one.token[node]))
    return missed
