"""A run's packed windows on disk, and the stream of batches from them; checkpoints store its position (grain)."""

import dataclasses
import hashlib
import io
from pathlib import Path
from typing import Any

import grain
import numpy as np

from jaxspec.host.atomic import staged
from jaxspec.host.buckets import in_bucket
from jaxspec.host.terminal import say
from jaxspec.train.data.encoding import encode, warn_of_special_names
from jaxspec.train.data.records import NoUsableRecordError
from jaxspec.train.data.sources import Sources, Texts, split
from jaxspec.train.data.text import Windows, join, take, windows
from jaxspec.train.hyperparameters import Recipe

ENDLESS = 2**31  # number of epochs
_FIELDS = ("tokens", "segment", "counted")
_EVALUATED = 64  # most held-out windows
_SOURCES = "sources.sha256"  # of the text that was packed


def warn_of_changes(place: Path, sources: Sources) -> None:
    """Prints a warning if the text packed in `place` was made from other sources than these."""
    text = place / _SOURCES
    if text.exists() and text.read_text(encoding="ascii") != _sha256(sources):
        say(
            f"warning: the text has changed since this run began, which continues with the text packed then, in {place}"
        )


def _sha256(sources: Sources) -> str:
    digest = hashlib.sha256()
    for each in (*sources.found, *sources.generated):
        digest.update(repr(each).encode())
    return digest.hexdigest()


def prepare(place: Path, tokenizer: Any, sources: Sources, length: int, recipe: Recipe, vocab_size: int) -> None:
    """Packs as much text as the steps need into `place`/train, and a fixed amount into `place`/held-out.

    If there are two sources, each has at least one window, and one that is too small for its share is repeated, and
    stderr reports how often. Nothing is held out if no held-out record is usable, which stderr reports, too.

    Raises ValueError if there is no usable text, a token is outside the vocabulary of `vocab_size`, or a chat format is
    given and there are no conversations.
    """
    if sources.chat_format and sources.chat_args is None:
        raise ValueError("the data holds no conversations, to which --chat-arg and --system apply; leave them out")
    count = recipe.steps * recipe.batch_size
    generated = round(count * sources.share)
    if sources.generated:
        if count < 2:
            raise ValueError(
                "one step with one window cannot mix generated and open text: raise --steps or --batch-size, or leave "
                "out --open-data"
            )
        generated = min(max(generated, 1), count - 1)

    def pack(found: Texts, seed: int, count: int) -> Windows:
        order = np.random.default_rng(seed).permutation(len(found))
        encoded = encode(tokenizer, [found[i] for i in order], count * length, sources.strict, sources.chat_format)
        packed = take(windows(encoded, length, tokenizer.eos_token_id or 0), slice(count))
        if (largest := packed.tokens.max(initial=0)) >= vocab_size:
            raise ValueError(f"the tokenizer made token {largest} of the text, outside the vocabulary of {vocab_size}")
        return packed

    warn_of_special_names(tokenizer, [*sources.found, *sources.generated])
    kept, held_out = split(sources.found)
    try:
        if held_out and (measured := pack(held_out, 0, _EVALUATED)).counted.any():
            write(place / "held-out", measured)
    except NoUsableRecordError as error:
        say(f"the held-out text is left out: {error}")
    wanted = ((sources.generated, generated), (kept, count - generated))
    packed = [(pack(found, recipe.seed, number), number) for found, number in wanted if number]
    if generated:
        for name, (some, number) in zip(("generated", "open"), packed, strict=True):
            if (there := len(some.tokens)) < number:
                say(f"the {name} text fills {there} windows of its {number}: each is seen {number / there:.1f} times")
        packed = [(take(some, np.arange(number) % len(some.tokens)), number) for some, number in packed]
    train = join([some for some, _ in packed])  # batches are drawn from all of them
    if not train.counted.any():
        raise ValueError(
            f"no token of the assistant is in any of {len(train.tokens)} windows of {length} tokens; raise --context "
            "or --steps"
        )
    write(place / "train", train)
    (place / _SOURCES).write_text(_sha256(sources), encoding="ascii")


def load(place: Path) -> tuple[Windows, Windows | None]:
    """The windows of a run: for training, and held-out ones or None."""
    held_out = place / "held-out"
    return read(place / "train"), read(held_out) if held_out.exists() else None


def write(folder: Path, packed: Windows) -> None:
    with staged(folder, sum(getattr(packed, name).nbytes for name in _FIELDS)) as place:
        for name in _FIELDS:
            with (place / f"{name}.npy").open("wb") as file:
                np.save(file, getattr(packed, name))


def read(folder: Path) -> Windows:
    """The windows in a folder, memory-mapped; in memory from a bucket."""
    return Windows(**{name: read_array(folder / f"{name}.npy") for name in _FIELDS})


def read_array(path: Path) -> Any:
    """The array of a file .npy, memory-mapped on a disk, and in memory from a bucket."""
    return np.load(io.BytesIO(path.read_bytes())) if in_bucket(path) else np.load(path, mmap_mode="r")


def batches(packed: Windows, size: int, seed: int) -> grain.DatasetIterator:
    """Endless batches of windows, shuffled again in each epoch. Raises ValueError if there are too few windows."""
    count, length = packed.tokens.shape
    if count < size:
        raise ValueError(
            f"there is too little text: it fills {count} windows of {length} tokens and a batch takes {size}; add "
            "text, or lower --batch-size or --context"
        )
    # A finite number of epochs, because grain's endless repeat fails for a batch size of 1.
    numbers = grain.MapDataset.range(count).seed(seed).shuffle().repeat(ENDLESS).batch(size)
    batch = numbers.map(lambda rows: dataclasses.replace(take(packed, rows), index=rows.astype(np.int32)))
    return iter(batch.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)))
