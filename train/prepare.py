"""From documents to the packed windows that a run trains on and those that it measures with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.convert.files import staged
from jaxspec.train import dataset, text
from jaxspec.train.encoding import encode
from jaxspec.train.recipe import Recipe
from jaxspec.train.records import Conversation
from jaxspec.train.runs import Run
from jaxspec.train.text import Document, Windows

_EVALUATED = 64  # held-out windows, at most

Found = Sequence[Document | Conversation]


def split(found: Found) -> tuple[Found, Found]:
    """What to train on and what is held out. Raises ValueError where nothing is left to train on."""
    kept, held_out = text.split(found)
    if not kept:
        raise ValueError("there is too little text: every file in it is one that is held out; add text")
    return kept, held_out


def write(place: Path, tokenizer: Any, found: Found, length: int, recipe: Recipe, strict: bool = False) -> None:
    """Packs as much text as the steps take into `place`/train, and a fixed amount of held-out text beside it.

    Args:
        tokenizer: a transformers tokenizer.
        length: of a window, in tokens.
        strict: refuse the first conversation that the chat template cannot write.
    """
    kept, held_out = split(found)
    for name, documents, seed, count in (
        ("held-out", held_out, 0, _EVALUATED),
        ("train", kept, recipe.seed, recipe.steps * recipe.batch_size),
    ):
        if documents:
            encoded = encode(tokenizer, shuffled(documents, seed), count * length, strict)
            packed = text.windows(encoded, length, tokenizer.eos_token_id or 0)
            dataset.write(place / name, text.take(packed, slice(count)))


def ready(run: Run, tokenizer: Any, found: Found, length: int, recipe: Recipe, strict: bool) -> None:
    """Packs text for a run with the tokenizer of its target, unless it was done before."""
    if not run.data.exists():
        with staged(run.data, 0) as place:
            write(place, tokenizer, found, length, recipe, strict)


def windows(run: Run) -> tuple[Windows, Windows | None]:
    """The windows of a run: to train on, and held out where there are any."""
    held_out = run.data / "held-out"
    return dataset.read(run.data / "train"), dataset.read(held_out) if held_out.exists() else None


def shuffled(found: Found, seed: int) -> Found:
    """The documents in an order that only the seed decides."""
    return [found[i] for i in np.random.default_rng(seed).permutation(len(found))]
