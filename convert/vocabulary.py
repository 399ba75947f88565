"""Tokenizers whose files hold a bare vocabulary: sentencepiece's and LLaMA 3's tokenizer.model, Mistral's tekken.json.

The ids are those of the projects that the models come from: sentencepiece, Meta's llama-models and mistral-common.
Transformers 5 reads the first otherwise: it merges by id and not by score, and with it runs of spaces.
"""

import base64
import binascii
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from jaxspec.checkpoint.tokenizer import LLAMA3_SPLIT

NAMES = ("tokenizer.model", "tekken.json")
_LLAMA3_TOKENS = 128_000  # of text; 256 special tokens follow them
_LLAMA3_SPECIAL = (
    *("begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1", "finetune_right_pad_id"),
    *("step_id", "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag", "image"),
)
# Special tokens of the versions of tekken.json that do not list them.
_TEKKEN_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_BPE, _UNKNOWN, _CONTROL, _USER_DEFINED = 2, 2, 3, 4  # numbers of sentencepiece's format
# GPT-2's letter of each byte: itself where it is printable, and the others in order from 256 on.
_HIDDEN = [*range(33), *range(127, 161), 173]
_LETTERS = {byte: chr(256 + _HIDDEN.index(byte) if byte in _HIDDEN else byte) for byte in range(256)}
_SAMPLES = ("x", "  x", "x  y   z", "12 34", "\t\n", "é😀", "if a:\n        return  b")


def find(folder: Path) -> Path | None:
    """The file of a bare vocabulary in a folder, if there is one."""
    return next((file for name in NAMES if (file := folder / name).is_file()), None)


def read(file: Path, prefix: bool = True) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, without a post-processor, and its special tokens by transformers' names (`bos_token`).

    Without `prefix` no space is put before a text. Raises ValueError if the vocabulary is of another kind or damaged.
    """
    content = file.read_bytes()
    if file.name == "tekken.json":
        return _tekken(content, file)
    if content.startswith(b"\n"):  # a protobuf's first field; tiktoken's files are base64 text
        return _sentencepiece(content, file, prefix)
    return _tiktoken(content, file)


def add_around(tokenizer: Tokenizer, before: Sequence[str], after: Sequence[str]) -> None:
    """Sets the tokens, such as BOS and EOS, that go before and after every text."""
    around = [(token, tokenizer.token_to_id(token)) for token in {*before, *after}]
    if around:
        tokenizer.post_processor = processors.TemplateProcessing([*before, "$A", *after], special_tokens=around)


def merged_by_score(
    ids: Mapping[str, int], scores: Sequence[float], unknown: str | None, space: bool, byte_fallback: bool = True
) -> Tokenizer:
    """A BPE of sentencepiece's kind: it merges the two neighbours whose union has the best score.

    Args:
        ids: id by token.
        scores: by id; the higher, the earlier.
        unknown: the token of characters that have none.
        space: put a space before every text.
    """
    bpe = models.BPE(dict(ids), _merges(ids, scores), unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence([*[normalizers.Prepend("▁")] * space, normalizers.Replace(" ", "▁")])
    pieces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*pieces, *[decoders.Strip(" ", 1, 0)] * space])
    return tokenizer


def of_bytes(
    ids: Mapping[str, int], merges: Sequence[tuple[str, str]], patterns: Sequence[str], whole: bool
) -> Tokenizer:
    """A byte-level BPE of GPT-2's kind.

    Args:
        ids: id by token, in which a character stands for each byte.
        merges: the pairs that are merged, the first of them first.
        patterns: regular expressions that cut the text before, one after another.
        whole: a piece that is a token as a whole is not merged from its bytes.
    """
    tokenizer = Tokenizer(models.BPE(dict(ids), list(merges), ignore_merges=whole))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges(ids: Mapping[str, int], scores: Sequence[float] = ()) -> list[tuple[str, str]]:
    """All pairs of tokens whose union is a token, by the union's score, if there are scores, and then by its id."""
    unions = [
        (-scores[id_] if scores else 0.0, id_, token[:at], token[at:])
        for token, id_ in ids.items()
        for at in range(1, len(token))
        if token[:at] in ids and token[at:] in ids
    ]
    return [union[2:] for union in sorted(unions)]


def _sentencepiece(content: bytes, file: Path, prefix: bool) -> tuple[Tokenizer, dict[str, Any]]:
    try:
        from sentencepiece import SentencePieceProcessor

        format_ = importlib.import_module("sentencepiece.sentencepiece_model_pb2")  # without types
    except ImportError as error:
        raise ValueError(f"reading {file} needs a package: pip install sentencepiece protobuf") from error
    model = format_.ModelProto.FromString(content)
    trainer, normal = model.trainer_spec, model.normalizer_spec
    normal.add_dummy_prefix &= prefix
    defined = [piece.piece for piece in model.pieces if piece.type == _USER_DEFINED]
    unsupported = {
        "is no BPE": trainer.model_type != _BPE,
        "normalises text": normal.precompiled_charsmap or normal.remove_extra_whitespaces,
        "has user-defined pieces with spaces": any("▁" in piece for piece in defined),
    }
    if wrong := next((what for what, found in unsupported.items() if found), None):
        raise ValueError(f"{file} {wrong}, which is not supported")
    ids = {piece.piece: id_ for id_, piece in enumerate(model.pieces)}
    special = {"bos_token": trainer.bos_id, "eos_token": trainer.eos_id, "unk_token": trainer.unk_id}
    named = {name: model.pieces[id_].piece for name, id_ in special.items() if id_ >= 0}
    scores, unknown = [piece.score for piece in model.pieces], named.get("unk_token")
    tokenizer = merged_by_score(ids, scores, unknown, normal.add_dummy_prefix, trainer.byte_fallback)
    added = lambda pieces: [AddedToken(piece, normalized=False) for piece in pieces]
    tokenizer.add_special_tokens(added(each.piece for each in model.pieces if each.type in (_UNKNOWN, _CONTROL)))
    tokenizer.add_tokens(added(defined))
    reference = SentencePieceProcessor(model_proto=model.SerializeToString())
    for text in (*_SAMPLES, *(f"x{piece}x {piece}" for piece in defined)):
        if tokenizer.encode(text).ids != reference.encode(text):
            raise ValueError(f"{file} has rules that tokenizer.json cannot hold: {text!r} would get other ids")
    return tokenizer, named


def _tiktoken(content: bytes, file: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """LLaMA 3's tokenizer. Its special tokens are those of Meta's code, since the file has none."""
    try:
        lines = map(bytes.split, content.splitlines())
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"{file} is neither sentencepiece's nor tiktoken's, or damaged") from error
    if len(ranks) != _LLAMA3_TOKENS:
        raise ValueError(f"{file} is a tiktoken file of {len(ranks):,} tokens, and LLaMA 3's has {_LLAMA3_TOKENS:,}")
    names = [f"<|{name}|>" for name in _LLAMA3_SPECIAL]
    names += [f"<|reserved_special_token_{i}|>" for i in range(2, 2 + 256 - len(names))]
    tokenizer = _of_ranks(ranks, LLAMA3_SPLIT)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    return tokenizer, {"bos_token": names[0], "eos_token": names[1]}


def _tekken(content: bytes, file: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """Mistral's tokenizer: special tokens, and tokens of text by rank after them."""
    try:
        values = json.loads(content)
        config = values["config"]
        count, size = config["default_num_special_tokens"], config["default_vocab_size"]
        listed = {each["rank"]: each["token_str"] for each in values.get("special_tokens") or ()}
        special = listed or dict(enumerate(_TEKKEN_SPECIAL))
        words = values["vocab"][: size - count]
        tokens = {base64.b64decode(word["token_bytes"]): count + word["rank"] for word in words}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} is no tekken.json of Mistral, or damaged: {error!r}") from error
    names = [special.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)]
    tokenizer = _of_ranks(tokens, config["pattern"], names)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def _of_ranks(tokens: Mapping[bytes, int], pattern: str, first: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE that merges the pair whose union has the least id, as tiktoken; `first` are the ids before."""
    ids = {"".join(map(_LETTERS.__getitem__, token)): id_ for token, id_ in tokens.items()}
    if both := ids.keys() & set(first):
        raise ValueError(f"{min(both)!r} is both a special token and one of text, which tokenizer.json cannot hold")
    return of_bytes({name: id_ for id_, name in enumerate(first)} | ids, _merges(ids), [pattern], whole=True)
