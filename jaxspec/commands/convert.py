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
    from jaxspec.convert import eagle, hub, kinds, medusa, readers

    source = hub.locate(settings.src, settings.revision)
    kind = medusa if kinds.kind_of(source, readers.read_config(source)) == "medusa" else eagle
    kind.convert(source, settings.out, locate(settings.target), settings.dtype)


def export(settings: Export) -> None:
    """`jaxspec-convert export`."""
    from jaxspec.convert import eagle, export, medusa

    path, out, target = settings.path, settings.out, settings.target
    if settings.format == "eagle":
        eagle.export(path, out, None if target is None else locate(target))
    elif target is not None:
        raise ValueError("--target names the target of an EAGLE head, so it needs --format eagle")
    elif settings.format == "medusa":
        medusa.export(path, out)
    else:
        export.export(locate(path), out)


def describe(settings: Inspect) -> None:
    """`jaxspec-convert inspect`."""
    from jaxspec.convert import inspect

    print(inspect.describe(locate(settings.path)))


def main() -> None:
    """Entry point of the console script."""
    run(lambda: carry_out("jaxspec-convert", "Checkpoints in and out of jaxspec.", COMMANDS))


if __name__ == "__main__":
    main()
