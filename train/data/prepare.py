"""From documents to the packed windows that a run trains on and those that it measures with."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.host.terminal import say
from jaxspec.train.data import dataset, text
from jaxspec.train.data.encoding import encode
from jaxspec.train.data.sources import Sources, Texts, split
from jaxspec.train.data.text import Windows
from jaxspec.train.settings.recipe import Recipe

_EVALUATED = 64  # held-out windows, at most


def write(place: Path, tokenizer: Any, sources: Sources, length: int, recipe: Recipe) -> None:
    """Packs as much text as the steps take into `place`/train, and a fixed amount of held-out text beside it.

    Of two sources, one that is too small for its share is repeated, and stderr says how often.

    Args:
        tokenizer: a transformers tokenizer.
        length: of a window, in tokens.
    """

    def pack(found: Texts, seed: int, count: int) -> Windows:
        order = np.random.default_rng(seed).permutation(len(found))
        encoded = encode(tokenizer, [found[i] for i in order], count * length, sources.strict)
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


def windows(place: Path) -> tuple[Windows, Windows | None]:
    """The windows of a run: to train on, and held out where there are any."""
    held_out = place / "held-out"
    return dataset.read(place / "train"), dataset.read(held_out) if held_out.exists() else None
