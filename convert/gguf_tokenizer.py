"""The tokenizer of a GGUF file as a Hugging Face tokenizer, whose ids are those of llama.cpp for the same file."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import vocabulary
from jaxspec.host.terminal import say

# How byte-level tokenizers cut text before they merge: regular expressions, one after another; each cuts out its
# matches from what the ones before left. Source: src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
)
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES
)
_ALPHABETS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ"
    "ῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_CJK = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK = (r"[\r\n]", rf"\s?[{_ALPHABETS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}+")
_KINDS = (
    ("default", (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("llama-bpe llama3 llama-v3 falcon3 pixtral midm-2.0", (_LLAMA3,)),
    ("tekken", (_TEKKEN,)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez", (_LLAMA3.replace("{1,3}", ""),)),
    ("smollm starcoder refact command-r minerva-7b", (r"\p{N}", _GPT2)),
    ("gpt-2 a.x-4.0 mellum trillion granite-docling", (_GPT2,)),
    ("deepseek-llm", _DEEPSEEK),
    ("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
)
SPLITS = {name: patterns for names, patterns in _KINDS for name in names.split()}
# With these patterns a piece that is a token as a whole is not merged from its bytes, and BOS is added by default.
_LIKE_LLAMA3 = ((_LLAMA3,), (_TEKKEN,))

_KEY = "tokenizer.ggml."
_READ = re.compile(
    r"model|pre|tokens|token_type(_count)?|scores|merges|add_(bos|eos)_token|add_space_prefix|\w+_token_id"
)
_NEUTRAL = {"add_sep_token": False, "remove_extra_whitespaces": False}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
# Tokens that end an answer, of which a file names one or two; for llama.cpp they are control tokens in every file. The
# marks of padding, of a repository and of a file count too.
_ENDS = {
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "<|end|>", "<|return|>"),
    *("<|call|>", "<end_of_turn>", "<end_of_utterance>", "</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
    *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
}
_EOS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_ADVICE = "; name a folder with the model's tokenizer: `jaxspec-convert llama SRC OUT --tokenizer FOLDER`"


def special_tokens(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Special tokens for `CheckpointConfig`; as in llama.cpp all that end an answer are EOS. Raises CheckpointError."""
    tokens, ids = _vocabulary(metadata, name)
    eos = [ids[kind] for kind in _EOS if kind in ids]
    eos += [id_ for id_, token in enumerate(tokens) if token in _ENDS]
    return {"bos": ids.get("bos"), "eos": tuple(dict.fromkeys(eos)), "pad": ids.get("padding")}


def files(metadata: Mapping[str, Any], name: str) -> dict[str, str]:
    """Texts of tokenizer.json and tokenizer_config.json by name, none without a tokenizer; or a CheckpointError."""
    settings = {key.removeprefix(_KEY): value for key, value in metadata.items() if key.startswith(_KEY)}
    if (kind := settings.get("model")) in (None, "none", "no_vocab"):
        return {}
    if kind not in ("gpt2", "llama"):
        raise CheckpointError(f"{name} has a tokenizer of the kind {kind!r}; only gpt2 and llama are read{_ADVICE}")
    for key, value in settings.items():
        if not _READ.fullmatch(key) and value != _NEUTRAL.get(key, ...):
            raise CheckpointError(f"{name} has {_KEY}{key} {str(value)[:80]}, which is not supported{_ADVICE}")
    types, ids = _vocabulary(metadata, name)
    tokens, by_token = list(types), {token: id_ for id_, token in enumerate(types)}
    special = {kind: tokens[id_] for kind, id_ in ids.items()}
    try:
        if kind == "gpt2":
            tokenizer, adds_bos = _byte_level(settings, by_token, name)
        else:
            space = settings.get("add_space_prefix", True)
            tokenizer = vocabulary.merged_by_score(by_token, settings["scores"], special["unknown"], space)
            adds_bos = True
        added = lambda *kinds: [AddedToken(token, normalized=False) for token in tokens if types[token] in kinds]
        tokenizer.add_special_tokens(added(_UNKNOWN, _CONTROL))
        tokenizer.add_tokens(added(_USER_DEFINED))
        adds = {"bos": settings.get("add_bos_token", adds_bos), "eos": settings.get("add_eos_token", False)}
        before, after = ([special[end]] if adds[end] else [] for end in adds)
        vocabulary.add_around(tokenizer, before, after)
    except CheckpointError:
        raise
    except Exception as error:  # of many kinds, plain ones by tokenizers
        raise CheckpointError(f"the tokenizer in {name} is damaged ({error!r:.200}){_ADVICE}") from error
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{ours: special[theirs] for ours, theirs in named.items() if theirs in special},
        **{f"add_{end}_token": adds[end] for end in adds},
        "clean_up_tokenization_spaces": False,
        "chat_template": _templates(metadata, name, special["bos"] if adds["bos"] else ""),
    }
    return {"tokenizer.json": tokenizer.to_str(), "tokenizer_config.json": json.dumps(config, indent=2) + "\n"}


def _templates(metadata: Mapping[str, Any], name: str, bos: str) -> str | list[dict[str, str]] | None:
    """The chat template, or the list of all by name if there are several; as in tokenizer_config.json."""
    key, listed = "tokenizer.chat_template", metadata.get("tokenizer.chat_templates") or []
    templates = {"default": metadata[key]} if key in metadata else {}
    templates |= {other: metadata.get(f"{key}.{other}") for other in (listed if isinstance(listed, list) else [listed])}
    if wrong := [other for other, text in templates.items() if not isinstance(text, str)]:
        raise CheckpointError(f"the chat template {wrong[0]!r} in {name} is not a text{_ADVICE}")
    if bos:  # llama.cpp begins a chat with the BOS that the file adds, also where the template has none
        has_bos = lambda text: "bos_token" in text or bos in text
        templates = {other: text if has_bos(text) else "{{ bos_token }}" + text for other, text in templates.items()}
    if templates.keys() <= {"default"}:
        return templates.get("default")
    return [{"name": other, "template": text} for other, text in templates.items()]


def _vocabulary(metadata: Mapping[str, Any], name: str) -> tuple[dict[str, int], dict[str, int]]:
    """The type of each token, by id, and the ids of special tokens by llama.cpp's names, such as `bos` and `eot`."""
    tokens = metadata.get(f"{_KEY}tokens")
    if tokens is None:
        return {}, {}
    types = metadata.get(f"{_KEY}token_type", [_NORMAL] * len(tokens) if isinstance(tokens, list) else [])
    # As llama.cpp names empty ones.
    named = [str(token or f"[EMPTY_{id_}]") for id_, token in enumerate(tokens if isinstance(tokens, list) else ())]
    if not isinstance(types, list) or not named or not len(set(named)) == len(named) == len(types):
        raise CheckpointError(f"{name} must have different tokens in {_KEY}tokens, and a type of each{_ADVICE}")
    listed = {token: _CONTROL if token in _ENDS else type_ for token, type_ in zip(named, types, strict=True)}
    ids = {"bos": 1, "eos": 2, "unknown": 0} if metadata.get(f"{_KEY}model") == "llama" else {}
    for kind in ("bos", *_EOS, "unknown", "padding"):
        ids |= {kind: metadata[key]} if (key := f"{_KEY}{kind}_token_id") in metadata else {}
        if kind in ids and (not isinstance(ids[kind], int) or not 0 <= ids[kind] < len(tokens)):
            raise CheckpointError(
                f"{name} has {key} {str(ids[kind])[:80]}, which is outside its vocabulary of {len(tokens)}; correct it "
                "with the gguf package's gguf-set-metadata"
            )
    return listed, ids


def _byte_level(settings: Mapping[str, Any], by_token: dict[str, int], name: str) -> tuple[Tokenizer, bool]:
    """A tokenizer of GPT-2's kind, and whether it adds a BOS where the file does not set it."""
    if (kind := settings.get("pre")) is None:
        say(f"warning: {name} names no pre-tokenizer; as in llama.cpp the default is taken, and ids may be wrong")
    if (patterns := SPLITS.get(kind or "default")) is None:
        raise CheckpointError(f"{name} has the pre-tokenizer {kind!r}, which is unknown here{_ADVICE}")
    merges = [(merge[: (at := merge.index(" ", 1))], merge[at + 1 :]) for merge in settings["merges"]]
    like_llama3 = patterns in _LIKE_LLAMA3
    return vocabulary.of_bytes(by_token, merges, patterns, whole=like_llama3), like_llama3
