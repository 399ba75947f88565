"""Tokenizer files: copied as they are, never executed; Meta's are converted by transformers."""

import shutil
from pathlib import Path

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.names import Scheme
from jaxspec.host.terminal import say

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_USABLE = ("tokenizer.json", "tokenizer.model", "vocab.json")


def bring(source: Path, folder: Path, scheme: Scheme) -> None:
    """Copies or converts the tokenizer of `source` into `folder`. Without a tokenizer there is only a warning."""
    if scheme == "meta":
        _convert_meta(source, folder)
    else:
        copy(source, folder)
    if not has_tokenizer(folder):
        say(f"warning: {source} holds no tokenizer that can be read; without one, only token ids can be decoded")


def copy(source: Path, folder: Path) -> None:
    """Copies the existing tokenizer files, byte for byte, and nothing else."""
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a Hugging Face tokenizer."""
    return any((folder / name).is_file() for name in _USABLE)


def check_tokenizer(folder: Path) -> None:
    """Raises CheckpointError unless a folder named by the user holds a Hugging Face tokenizer."""
    if not has_tokenizer(folder):
        raise CheckpointError(
            f"{folder} holds no Hugging Face tokenizer ({', '.join(_USABLE)}); name another --tokenizer"
        )


def check_readable(folder: Path) -> None:
    """Raises CheckpointError if the folder's tokenizer.json is damaged."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise CheckpointError(
            f"{file} is not a whole tokenizer ({' '.join(str(error).split())[:200]}); download it again, or name "
            "another --tokenizer"
        ) from error


def _convert_meta(source: Path, folder: Path) -> None:
    """Converts a sentencepiece model (LLaMA 1 and 2) with transformers. LLaMA 3's tiktoken files cannot be converted,
    because they lack the special tokens."""
    # LLaMA 1 has its tokenizer next to the folders of its sizes.
    file = next((at for at in (source / "tokenizer.model", source.parent / "tokenizer.model") if at.is_file()), None)
    if file is None:
        return
    with file.open("rb") as stream:
        is_sentencepiece = stream.read(1) == b"\n"  # a protobuf's first field; tiktoken's files are base64 text
    if not is_sentencepiece:
        say(f"warning: {file} is a tiktoken file, which lacks the special tokens; name a tokenizer with --tokenizer")
        return
    from transformers import LlamaTokenizer

    LlamaTokenizer.from_pretrained(str(file.parent), add_bos_token=True).save_pretrained(str(folder))
