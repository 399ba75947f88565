"""Generated text with its drafts in colour."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.segment import Segments
from rich.text import Text

from jaxspec.engine.generation import Generation, Round

STYLES = {"prefill": "bold", "accepted": "green", "bonus": "bold blue", "rejected": "dim red strike"}
LEGEND = "green: drafted and accepted, blue: from the target (the bonus token), struck out: drafted and rejected"
PLAIN_LEGEND = "[-in brackets-]: drafted and rejected"


def has_colours(console: Console) -> bool:
    """Whether a console shows colours: it is a terminal without NO_COLOR."""
    return console.color_system is not None and not console.no_color


def print_text(console: Console, text: Text, end: str = "\n") -> None:
    """Prints a text with its tabs, which `Console.print` would expand."""
    console.print(Segments(text.render(console, end)), soft_wrap=True)


def legend(colours: bool) -> str:
    return LEGEND if colours else PLAIN_LEGEND


def coloured(generation: Generation, tokenizer: Any, rejected: bool, colours: bool = True) -> Text:
    """The text of a recorded generation, coloured by the origin of each token; on demand with `rejected` drafts.

    Where the output has no `colours`, rejected drafts are put in brackets.
    """
    return Text().join(coloured_pieces(generation, tokenizer, rejected, colours))


def coloured_pieces(generation: Generation, tokenizer: Any, rejected: bool, colours: bool) -> list[Text]:
    """The coloured text in pieces, one or more per round. Further rounds add pieces and change none.

    A character is in the piece of its last token. A text that a stop string ended ends before that string.
    """
    found, before, unfinished, shown = [], generation.prompt_tokens, list[int](), 0
    left = len(generation.text) if generation.finish_reason == "stop" else None
    for kind, tokens in pieces(generation, rejected):
        if left == 0:
            break
        if kind == "rejected":  # its line breaks are not the text's
            text = re.sub(r"\s*\n\s*", "⏎", tokenizer.decode_after([*before, *unfinished], tokens))
            found.append(Text(text if colours else f"[-{text}-]", STYLES[kind]))
            continue
        unfinished = [*unfinished, *tokens]
        whole = (text := tokenizer.decode_after(before, unfinished)).rstrip("\ufffd")
        piece = whole[shown:][:left]
        before, unfinished, shown = (before, unfinished, len(whole)) if text != whole else (unfinished or before, [], 0)
        left = None if left is None else left - len(piece)
        found.append(Text(piece, STYLES[kind]))
    return found


def pieces(generation: Generation, rejected: bool) -> Iterator[tuple[str, list[int]]]:
    """(kind, tokens) in the order of the text: prefill's token, then each round's accepted, rejected and bonus ones."""
    if generation.rounds is None:
        raise ValueError("drafts can be shown only of generations made with record=True")
    yield "prefill", generation.tokens[:1]
    for at, one in enumerate(generation.rounds):
        accepted = int(generation.history.accepted[at])
        yield "accepted", one.committed[:accepted]
        if rejected and (missed := rejected_path(one, accepted)):
            yield "rejected", missed
        yield "bonus", one.committed[accepted:]


def rejected_path(one: Round, accepted: int) -> list[int]:
    """The most confident drafted continuation of the accepted path.

    Empty if the end of the text cut the round: then there is no bonus token, and no verdict on deeper drafts.
    """
    if len(one.committed) <= accepted:
        return []
    node, missed = int(np.flatnonzero(one.accepted)[-1]), []
    while len(children := np.flatnonzero(one.parent == node)):
        node = int(children[one.log_confidence[children].argmax()])
        missed.append(int(one.token[node]))
    return missed
