"""Records the ids that llama.cpp gives to `PAGE` with each kind of vocabulary, in gguf_ids.json.

Needs llama-cpp-python, which the project does not: run it in an environment of its own, as

    pip install llama-cpp-python gguf numpy && python -m tests.convert.record_gguf_ids KIND ...

with the kinds of pre-tokenizers in `gguf_tokenizer.SPLITS`; `sentencepiece` is recorded too.
"""

import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.convert import gguf_files

FILE = Path(__file__).with_name("gguf_ids.json")
# fmt: off
PAGE = (
    "", " ", "  ", "a  12", "hello world", " hello", "   hello", "    return x", "a b  c   d    e", "\t\tx\t y",
    "a\nb\n\nc\n\n\n  d", "\r\na\r\n\r\n b", " \n \n\n \t\n", "hello   ", "hello\n", "1 12 123 1234 12345 1234567",
    "3.14,1e-5;2024-11-26 $12", "camelCaseHTTPServer XMLHttp iPhone", "snake_case__init__ CONSTANT",
    "I'm you're he'll we've it's they'd don't", "I'M YOU'RE HE'LL WE'VE IT'S THEY'D DON'T 'Re",
    "naïve café Ångström ÀÉÎ straße", "e\u0301a\u0300 n\u0303 x\u0323\u0307", "👍🏽 👩\u200d👩\u200d👧 🇩🇪 ❤️",
    "สวัสดีครับ ภาษาไทย", "今天天气很好。我们去公园吧！", "こんにちは、カタカナ 한국어", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया",
    "Привет, Мир", 'def f(x: int) -> str:\n    return f"{x!r}"  # ok\n', "a+b==c && d||e); /* x */ <html>&amp;</html>",
    "x\x01y\x1b[0m\x7f", "\u00a0nb\u2003em\u3000ideo\u200bzw\ufeff", "!!!??? ... --- === ''' \"\"\" ```",
    "<s>hello</s> <unk>", "<|user|> hello<|end|>\n", "hello<tool> world<|begin|>", "▁x ▁▁y", "a" * 20, " " * 17 + "x",
    "€50 ±2° ½ ² Ⅷ", "don’t “quote” – dash…", "\u0085\u2028x\u2029", "aaa      hello\n\n\n/", "f(x`y`);\n  z",
)
# fmt: on


def vocabulary(kind: str) -> dict[str, Any]:
    """Metadata of the vocabulary of a kind of pre-tokenizer; `sentencepiece`, which has none; `spaceless`, the same
    without a space before each text."""
    if kind in ("sentencepiece", "spaceless"):
        return gguf_files.sentencepiece() | {"tokenizer.ggml.add_space_prefix": kind == "sentencepiece"}
    return gguf_files.byte_level(kind)


def main() -> None:
    import llama_cpp  # pyright: ignore[reportMissingImports]

    found: dict[str, list[list[int]]] = {}
    same: dict[str, str] = {}
    for kind in ("sentencepiece", "spaceless", *sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vocabulary.gguf"
            gguf_files.vocabulary(path, vocabulary(kind))
            model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
            ids = [model.tokenize(text.encode(), add_bos=True, special=True) for text in PAGE]
        same[kind] = next((other for other, theirs in found.items() if theirs == ids), kind)
        found.setdefault(same[kind], ids)
    about = {"llama-cpp-python": llama_cpp.__version__, "date": str(datetime.datetime.now(datetime.UTC).date())}
    lines = ",\n".join(f"{json.dumps(kind)}: {json.dumps(ids, separators=(',', ':'))}" for kind, ids in found.items())
    FILE.write_text(f'{{"about": {json.dumps(about)},\n"same": {json.dumps(same)},\n"ids": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
