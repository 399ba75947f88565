"""Small tokenizers of the kinds that models of the hub have, as their files, and a page of nasty texts."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from jaxspec.checkpoint.tokenizer import Tokenizer as OurTokenizer
from jaxspec.checkpoint.tokenizer import load_tokenizer

NASTY = (
    "", " ", "    return x", "\treturn x\r\n\n\n  y", "a  b   c    d ",
    "1 12 123 1234 12345 123456 1234567 3.14 1e-9", "camelCase HTTPServer getX2Y iPhone",
    "I'm you'LL we've DON'T it's", "naïve café ﬁ Å cafe\u0301", "😀 👩‍👩‍👧‍👦 🇫🇷", "ภาษาไทย ง่าย", "你好，世界 مرحبا",
    "for (int i = 0; i < n; ++i) { a[i] += b->c; }", "\x01\x7f\u200b\u2028\ufeff", "<s>hello</s> world<unk>",
    "<|user|>hi<|end|>\n<|assistant|>", " [INST] x [/INST]  y", "</s",
)  # fmt: skip
TEXT = [*NASTY, "The quick brown fox jumps over the lazy dog. " * 3, "def greet(name):\n    return 'Hello, ' + name\n"]
SPLIT = r"\p{N}|[A-Z]?\p{Ll}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+|\p{L}"  # digits one by one, camel case apart
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>"]
MARKS = ["<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def of_bytes(split: str | None = SPLIT, bos: bool = False) -> Tokenizer:
    """Byte-level BPE, as LLaMA 3's and Qwen's, by default with a regex of its own."""
    made = Tokenizer(models.BPE())
    parts = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(TEXT, trainer)
    made.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def of_sentencepiece(legacy: bool) -> Tokenizer:
    """BPE with byte fallback, as LLaMA 2's (`legacy`: a space before every piece of text) or newer Mistral's."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))])}
    merges = [
        ("▁", "▁"), ("▁▁", "▁▁"), ("r", "e"), ("t", "h"), ("▁", "th"), ("▁", "x"), ("re", "t"), ("▁", "re"),
        ("e", "l"),
    ]  # fmt: skip
    for token in (*sorted({c for text in TEXT for c in text if c.isascii() and c.isprintable()} - {" "}), "▁"):
        vocabulary.setdefault(token, len(vocabulary))
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if legacy:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def write(folder: Path, tokenizer: Tokenizer | None, config: dict[str, Any] | None = None, **model: Any) -> Path:
    """Writes the files of a model's folder: tokenizer.json, tokenizer_config.json, and config.json of `model`."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    for name, values in (("tokenizer_config.json", config), ("config.json", model or None)):
        if values is not None:
            (folder / name).write_text(json.dumps(values))
    return folder


def loaded(folder: Path) -> OurTokenizer:
    """The tokenizer of a folder that has one."""
    found = load_tokenizer(folder)
    assert found is not None
    return found
