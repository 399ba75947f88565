"""From documents to the packed windows that a run trains on and those that it measures with."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.host.atomic import staged
from jaxspec.host.terminal import say
from jaxspec.train.data import dataset, text
from jaxspec.train.data.encoding import encode
from jaxspec.train.data.records import Conversation
from jaxspec.train.data.text import Document, Windows
from jaxspec.train.run.folder import Run
from jaxspec.train.run.recipe import Recipe

_EVALUATED = 64  # held-out windows, at most

Found = Sequence[Document | Conversation]


@dataclasses.dataclass(frozen=True)
class Sources:
    """What to train on.

    Attributes:
        found: those whose name `text.is_held_out` only measure the result.
        generated: what a target wrote; none of it is held out.
        share: how much of the training windows are to be `generated`.
    """

    found: Found
    generated: Found = ()
    share: float = 0.0


def split(found: Found) -> tuple[Found, Found]:
    """What to train on and what is held out. Raises ValueError where nothing is left to train on."""
    kept, held_out = text.split(found)
    if not kept:
        raise ValueError("there is too little text: every file in it is one that is held out; add text")
    return kept, held_out


def write(place: Path, tokenizer: Any, sources: Sources, length: int, recipe: Recipe, strict: bool = False) -> None:
    """Packs as much text as the steps take into `place`/train, and a fixed amount of held-out text beside it.

    Of two sources, one that is too small for its share is repeated, and stderr says how often.

    Args:
        tokenizer: a transformers tokenizer.
        length: of a window, in tokens.
        strict: refuse the first conversation that the chat template cannot write.
    """

    def pack(found: Found, seed: int, count: int) -> Windows:
        encoded = encode(tokenizer, shuffled(found, seed), count * length, strict)
        return text.take(text.windows(encoded, length, tokenizer.eos_token_id or 0), slice(count))

    kept, held_out = split(sources.found)
    if held_out:
        dataset.write(place / "held-out", pack(held_out, 0, _EVALUATED))
    count = recipe.steps * recipe.batch_size
    generated = round(count * sources.share)
    wanted = ((sources.generated, generated), (kept, count - generated))
    packed = [(pack(found, recipe.seed, number), number) for found, number in wanted if number]
    if generated:
        for name, (some, number) in zip(("generated", "open"), packed, strict=True):
            if (there := len(some.tokens)) < number:
                say(f"the {name} text fills {there} windows of its {number}: each is seen {number / there:.1f} times")
        packed = [(text.take(some, np.arange(number) % len(some.tokens)), number) for some, number in packed]
    dataset.write(place / "train", text.join([some for some, _ in packed]))  # batches are drawn from all of them


def ready(run: Run, tokenizer: Any, sources: Sources, length: int, recipe: Recipe, strict: bool) -> None:
    """Packs text for a run with the tokenizer of its target, unless it was done before."""
    if not run.data.exists():
        with staged(run.data, 0) as place:
            write(place, tokenizer, sources, length, recipe, strict)


def windows(run: Run) -> tuple[Windows, Windows | None]:
    """The windows of a run: to train on, and held out where there are any."""
    held_out = run.data / "held-out"
    return dataset.read(run.data / "train"), dataset.read(held_out) if held_out.exists() else None


def shuffled(found: Found, seed: int) -> Found:
    """The documents in an order that only the seed decides."""
    return [found[i] for i in np.random.default_rng(seed).permutation(len(found))]
