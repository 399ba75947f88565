"""Tokenizer files: copied, never executed. A missing tokenizer.json is made from another file of the vocabulary."""

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from jaxspec.checkpoint import config_json
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.tokenizer import FILES, GENERIC, class_of, load_tokenizer, read_if_there
from jaxspec.convert import gguf, gguf_tokenizer, meta, vocabulary
from jaxspec.convert.folders import TOKENIZERS, check_present
from jaxspec.host.atomic import write_whole
from jaxspec.host.terminal import say


def copy_or_make(source: Path, folder: Path, named: Path | None = None) -> str | None:
    """Copies the tokenizer of a model, or of a folder `named` instead, and writes its tokenizer.json if it has none.

    A GGUF file's tokenizer takes precedence over other files. Returns the tokenizer's class
    (`checkpoint.tokenizer.class_of`); None, with a warning, if none can be read.
    """
    try:
        if named is None and (file := gguf.find(source)) is not None:
            for name, text in _in_gguf(file).items():
                (folder / name).write_text(text, encoding="utf-8")
            if has_tokenizer(folder):
                return GENERIC
        # LLaMA 1 has its tokenizer next to the folders of its sizes.
        places = (source, source.parent) if named is None and meta.is_meta(source) else (named or source,)
        source = named or source
        if (at := next((place for place in places if has_tokenizer(place)), None)) is None:
            raise ValueError(f"it has none of the files {', '.join(TOKENIZERS)}")
        copy(at, folder)
        if (at / "tokenizer.json").is_file():
            _warn_of_ignored_settings(at, at)
            return class_of(at)
        if (file := vocabulary.find(at)) is not None:
            _make(file, folder)
        else:
            from transformers import AutoTokenizer

            loaded = AutoTokenizer.from_pretrained(str(at), local_files_only=True, trust_remote_code=False)
            listed, found = read_if_there(at / "vocab.json"), loaded.get_vocab()
            listed |= read_if_there(at / "added_tokens.json")
            if wrong := [token for token, id_ in listed.items() if found.get(token) != id_]:
                kind, id_ = type(loaded).__name__, listed[wrong[0]]
                raise ValueError(f"the token {wrong[0]!r} has the id {id_}, and not in transformers' {kind}")
            # An AttributeError means a tokenizer of Python code, which tokenizer.json cannot hold.
            _write(loaded.backend_tokenizer, loaded.special_tokens_map, folder)
        _warn_of_ignored_settings(at, folder)
        return GENERIC
    except Exception as error:  # transformers raises many kinds
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk, not of the tokenizer
        for file in files(folder):
            file.unlink()
        say(
            f"warning: {source} holds no tokenizer that can be read ({' '.join(str(error).split())[:300]}); without "
            "one only token ids can be decoded; `jaxspec-convert llama` takes a folder with one as --tokenizer"
        )
        return None


def files(folder: Path) -> Iterator[Path]:
    """The tokenizer files in a folder."""
    return (file for name in FILES for file in sorted(folder.glob(name)) if file.is_file())


def copy(source: Path, folder: Path) -> None:
    """Copies the existing tokenizer files, byte for byte, and nothing else."""
    for file in files(source):
        (to := folder / file.relative_to(source)).parent.mkdir(exist_ok=True)
        to.write_bytes(file.read_bytes())


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a Hugging Face tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZERS)


def check_readable(source: Path, named: Path | None = None) -> None:
    """Raises CheckpointError if the tokenizer that `copy_or_make` would copy is not whole or cannot be read."""
    if named is not None and not has_tokenizer(named):
        raise CheckpointError(f"{named} holds no Hugging Face tokenizer; name another --tokenizer")
    for file in files(named or source):
        check_present(file)
    if named is None and (file := gguf.find(source)) is not None:
        _in_gguf(file)
    elif ((named or source) / "tokenizer.json").is_file():
        load_tokenizer(named or source)


def replace(source: Path, checkpoint: Path) -> None:
    """Replaces a checkpoint's tokenizer by that of `source`, its original model; a CheckpointError if it has none."""
    config = config_json.read_config(checkpoint)
    check_readable(source)
    with tempfile.TemporaryDirectory() as temporary:
        new = Path(temporary)
        if (kind := copy_or_make(source, new)) is None:
            raise CheckpointError(f"{source} holds no tokenizer that can be read, so {checkpoint} keeps its own")
        contents = {file.relative_to(new): file.read_bytes() for file in files(new)}
    for file in files(checkpoint):
        if file.relative_to(checkpoint) not in contents:
            file.unlink()
    for name, content in contents.items():
        (checkpoint / name).parent.mkdir(exist_ok=True)
        write_whole(checkpoint / name, content)
    write_whole(checkpoint / "config.json", dataclasses.replace(config, tokenizer_class=kind).to_json())
    say(f"wrote the tokenizer of {checkpoint}: {', '.join(map(str, contents))}")


def _in_gguf(file: Path) -> dict[str, str]:
    return gguf_tokenizer.files(gguf.open_gguf(file).metadata, file.name)


def _warn_of_ignored_settings(source: Path, made: Path) -> None:
    """Warns of settings of tokenizer_config.json that are without effect here; `made` holds the tokenizer.json."""
    file, tokenizer = source / "tokenizer_config.json", load_tokenizer(made)
    if tokenizer is None or not file.is_file():
        return
    config, added = read_if_there(file), tokenizer.encode("")
    for key, token in (("add_bos_token", tokenizer.bos_token_id), ("add_eos_token", tokenizer.eos_token_id)):
        if isinstance(wanted := config.get(key), bool) and wanted != (token in added):
            say(
                f"warning: {file} sets {key} to {str(wanted).lower()} and is ignored, as in transformers 5: "
                f"tokenizer.json {'adds none' if wanted else 'adds one'}"
            )
    model = json.loads((made / "tokenizer.json").read_text(encoding="utf-8")).get("model") or {}
    if config.get("clean_up_tokenization_spaces") is True and model.get("type") != "BPE":
        say(
            f"warning: {file} sets clean_up_tokenization_spaces to true and is ignored: transformers removes spaces "
            "before punctuation from decoded text, and jaxspec does not"
        )


def _make(file: Path, folder: Path) -> None:
    """Writes the tokenizer.json of a bare vocabulary. As in transformers, BOS goes before a text by default."""
    own = read_if_there(folder / "tokenizer_config.json")
    config = own if "added_tokens_decoder" in own else own | read_if_there(folder / "special_tokens_map.json")
    tokenizer, named = vocabulary.read(file, config.get("add_prefix_space") is not False)
    before_text = tokenizer.normalizer is not None and b"Prepend" in tokenizer.normalizer.__getstate__()
    if config.get("legacy") is False and before_text:
        # No space after a special token, as in transformers, where the first text then gets none before another space.
        tokenizer.normalizer = normalizers.Sequence([])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    content = lambda token: token["content"] if isinstance(token, dict) else token
    more = [token for key in ("additional_special_tokens", "extra_special_tokens") for token in config.get(key) or ()]
    special = {content(token) for token in [*more, *(config[key] for key in config if key.endswith("_token"))]}
    listed = own.get("added_tokens_decoder") or {
        at: {"content": token, "special": token in special}
        for token, at in read_if_there(folder / "added_tokens.json").items()
    }
    # A normalised token would begin with the space that the normaliser puts before a text, and no text would hold it.
    listed = {int(at): {**token, "normalized": False} for at, token in listed.items()}
    for at, token in sorted(listed.items()):
        if tokenizer.token_to_id(token["content"]) is None:
            tokenizer.add_tokens([AddedToken(**token)])
        if (found := tokenizer.token_to_id(token["content"])) != at:
            raise ValueError(f"the added token {token['content']!r} has the id {at}, and after {file} it gets {found}")
    named |= {name: content(config[name]) for name in named if name in config}
    if wrong := [name for name, token in named.items() if token is not None and tokenizer.token_to_id(token) is None]:
        raise ValueError(f"{file} has no token {named[wrong[0]]!r}, which the config files name as {wrong[0]}")
    ends = (("bos_token", config.get("add_bos_token", True)), ("eos_token", config.get("add_eos_token")))
    vocabulary.add_around(tokenizer, *([named[end]] if adds and named.get(end) else [] for end, adds in ends))
    _write(tokenizer, named | ({"added_tokens_decoder": listed} if "added_tokens_decoder" in own else {}), folder)


def _write(tokenizer: Tokenizer, changed: dict[str, Any], folder: Path) -> None:
    """Writes a tokenizer.json, and beside it tokenizer_config.json with the names of its special tokens."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config = {**read_if_there(folder / "tokenizer_config.json"), **changed, "tokenizer_class": GENERIC}
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
