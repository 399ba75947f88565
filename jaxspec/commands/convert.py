"""The command `jaxspec-convert`."""

import contextlib
from pathlib import Path

from jaxspec.checkpoint.builtin import from_hub, is_hub_id, locate
from jaxspec.commands.console import carry_out, run
from jaxspec.convert.options import Export, Head, Inspect, Llama, Tokenizer
from jaxspec.host.buckets import in_bucket
from jaxspec.host.terminal import say

COMMANDS = {
    "llama": (Llama, "commands.convert.convert_llama"),
    "head": (Head, "commands.convert.convert_head"),
    "export": (Export, "commands.convert.export"),
    "tokenizer": (Tokenizer, "commands.convert.replace_tokenizer"),
    "inspect": (Inspect, "commands.convert.describe"),
}


def convert_llama(settings: Llama) -> None:
    from jaxspec.commands import shard_stream
    from jaxspec.convert import folders, llama

    how = (settings.out, settings.dtype, settings.tokenizer, settings.quantize)
    if in_bucket(settings.out) and (model := shard_stream.look(settings.src, settings.revision)) is not None:
        shard_stream.convert(model, *how, settings.hosts.place())
        return
    settings.hosts.join()
    with folders.local(settings.src, settings.revision) as source:
        llama.convert(source, *how)


def convert_head(settings: Head) -> None:
    from jaxspec.convert import folders, heads
    from jaxspec.methods.method import typed

    target, taps = locate(settings.target), settings.taps
    if settings.draft_ids is not None or settings.draft_vocab is not None or settings.data is not None:
        _cut_head(settings, target)
        return
    numbers = None if taps is None else _numbers(taps)
    with folders.local(settings.src, settings.revision, folders.HEAD_WEIGHTS) as source:
        config = heads.convert(source, settings.out, target, settings.dtype, numbers, settings.rows)
    beside = settings.out.parent == target / "heads"
    where = settings.out.name if beside else f"{'' if settings.out.is_absolute() else './'}{settings.out}"
    say(f"decode with it by --method {typed(config.drafter, where)}")


def _cut_head(settings: Head, target: Path) -> None:
    """`jaxspec-convert head` with --draft-ids or --draft-vocab."""
    from jaxspec.convert import draft_cut, folders

    if (settings.draft_ids is None) == (settings.draft_vocab is None):
        raise ValueError(
            "name the tokens to draft by --draft-ids FILE, or by --draft-vocab N --data TEXT: one of the two"
        )
    if (settings.draft_vocab is None) != (settings.data is None):
        raise ValueError("--draft-vocab N and --data TEXT go together: the N most frequent tokens of that text")
    for name in ("dtype", "taps", "rows", "revision"):
        if getattr(settings, name) is not None:
            raise ValueError(
                f"--{name} is for converting a published head, and a head that is cut is jaxspec's already"
            )
    source = from_hub(settings.src, target) if is_hub_id(settings.src) else locate(settings.src)
    if folders.format_of(source) is None:
        raise ValueError(
            f"{source} is no head of jaxspec's; convert it first, without --draft-ids and --draft-vocab, and cut what "
            "that makes"
        )
    if settings.draft_ids is not None:
        ids = draft_cut.read_ids(settings.draft_ids)
    else:
        assert settings.draft_vocab is not None and settings.data is not None
        ids = _most_frequent(target, settings.draft_vocab, settings.data)
    draft_cut.cut(source, settings.out, target, ids)


def _most_frequent(target: Path, size: int, data: Path) -> list[int]:
    """The tokens of a target that a text counts most often."""
    from jaxspec.checkpoint import config_json, tokenizer
    from jaxspec.drafters import draft_vocabulary
    from jaxspec.train.data import encoding, records

    config, loaded = config_json.read_config(target), tokenizer.load_tokenizer(target)
    if size < 1:
        raise ValueError(f"--draft-vocab must be at least 1, not {size}")
    if loaded is None:
        raise ValueError(f"{target} has no tokenizer, so no text can be counted for it; list the tokens in --draft-ids")
    found = records.read(data)
    encoding.warn_of_special_names(loaded, found)
    encoded = encoding.encode(loaded, found)
    counts = encoding.token_counts(encoded, config.model.vocab_size)
    ids = draft_vocabulary.most_frequent(counts, size, always=config.eos)
    share = counts[ids].sum() / max(counts.sum(), 1)
    say(f"{share:.2%} of the {counts.sum():,} tokens that were counted are among the {len(ids)} to draft")
    return ids.tolist()


def export(settings: Export) -> None:
    from jaxspec.convert import heads, llama

    path, out, form = locate(settings.path), settings.out, settings.format
    target = None if settings.target is None else locate(settings.target)
    if target is not None and form in ("hf", "medusa"):
        raise ValueError(f"--target is for EAGLE and DFlash heads, and --format {form} is for others: leave it out")
    if settings.verifier is not None and form != "speculators":
        raise ValueError("--verifier needs --format speculators, the only format that names its target")
    if form == "hf":
        llama.export(path, out)
    else:
        heads.export(path, out, form, target, settings.verifier)


def replace_tokenizer(settings: Tokenizer) -> None:
    from jaxspec.convert import folders, tokenizer

    with folders.local(settings.src, settings.revision, folders.TOKENIZERS) as source:
        tokenizer.replace(source, settings.path)


def describe(settings: Inspect) -> None:
    from jaxspec.convert import folders, inspect

    path = settings.path
    ours = not is_hub_id(path) and folders.format_of(path := locate(path)) is not None
    if settings.verify:  # first, because a damaged one can hardly be described
        inspect.verify(path)
    # A checkpoint or head of jaxspec's is read where it is, also in a bucket.
    local = contextlib.nullcontext(path) if ours else folders.local(str(path), None, folders.HEAD_WEIGHTS)
    with local as found:
        print(inspect.describe(found))


def _numbers(taps: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in taps.split(","))
    except ValueError:
        raise ValueError(f"--taps needs layer numbers separated by commas, such as 2,16,29, not {taps!r}") from None


def main() -> None:
    """Entry point of the console script."""
    run(lambda: carry_out("jaxspec-convert", "Convert checkpoints and heads to and from jaxspec's format.", COMMANDS))


if __name__ == "__main__":
    main()
