"""The command `jaxspec-convert`."""

from jaxspec.checkpoint.builtin import locate
from jaxspec.commands.console import carry_out, run
from jaxspec.convert.settings import Export, Head, Inspect, Llama

COMMANDS = {
    "llama": (Llama, "commands.convert.convert_llama"),
    "head": (Head, "commands.convert.convert_head"),
    "export": (Export, "commands.convert.export"),
    "inspect": (Inspect, "commands.convert.describe"),
}


def convert_llama(settings: Llama) -> None:
    """`jaxspec-convert llama`."""
    from jaxspec.convert import hub, llama, tokenizer

    settings.hosts.join()
    if settings.tokenizer is not None:
        tokenizer.check_tokenizer(settings.tokenizer)
    source = hub.locate(settings.src, settings.revision)
    llama.convert(source, settings.out, settings.dtype, settings.tokenizer, settings.quantize)


def convert_head(settings: Head) -> None:
    """`jaxspec-convert head`."""
    from jaxspec.convert import eagle, eagle3, hub, kinds, medusa, readers

    source, target, taps = hub.locate(settings.src, settings.revision), locate(settings.target), settings.taps
    kind = kinds.kind_of(source, readers.read_config(source))
    if kind == "eagle3":
        layers = None if taps is None else _numbers(taps)
        eagle3.convert(source, settings.out, target, settings.dtype, layers)
    elif taps is not None:
        raise ValueError(f"--taps is for EAGLE-3 heads, and {source} holds none")
    else:
        (medusa if kind == "medusa" else eagle).convert(source, settings.out, target, settings.dtype)


def export(settings: Export) -> None:
    """`jaxspec-convert export`."""
    from jaxspec.convert import eagle, eagle3_export, export, medusa

    path, out, form = locate(settings.path), settings.out, settings.format
    target = None if settings.target is None else locate(settings.target)
    if target is not None and form not in ("eagle", "eagle3", "speculators"):
        raise ValueError(
            "--target names the target of an EAGLE head, so it needs --format eagle, eagle3 or speculators"
        )
    if settings.verifier is not None and form != "speculators":
        raise ValueError("--verifier is a word of the speculators format, so it needs --format speculators")
    if form == "eagle":
        eagle.export(path, out, target)
    elif form == "medusa":
        medusa.export(path, out)
    elif form == "hf":
        export.export(path, out)
    else:
        eagle3_export.export(path, out, form, target, settings.verifier)


def describe(settings: Inspect) -> None:
    """`jaxspec-convert inspect`."""
    from jaxspec.convert import inspect

    path = locate(settings.path)
    if settings.verify:  # first: what is damaged can hardly be described
        inspect.verify(path)
    print(inspect.describe(path))


def _numbers(taps: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in taps.split(","))
    except ValueError:
        raise ValueError(
            f"--taps takes numbers of layers with commas between them, such as 2,16,29, not {taps!r}"
        ) from None


def main() -> None:
    """Entry point of the console script."""
    run(lambda: carry_out("jaxspec-convert", "Checkpoints in and out of jaxspec.", COMMANDS))


if __name__ == "__main__":
    main()
