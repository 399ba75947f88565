"""Tokenizer files come along byte for byte; Meta's are converted."""

import json
from pathlib import Path

import pytest
import sentencepiece
import transformers

from jaxspec.checkpoint import builtin
from jaxspec.checkpoint.loading import load_tokenizer
from jaxspec.convert import export, llama
from tests import hf_models
from tests.checkpoints import byte_tokenizer
from tests.convert.commands import run
from tests.convert.test_meta import write_meta

TEXT = "def greet(name):\n    return 'Hello, ' + name\n\nThe quick brown fox jumps over the lazy dog 1234567890 times."
TOKENIZER = byte_tokenizer().backend_tokenizer.to_str().encode()


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sentencepiece")
    (path / "text").write_text(TEXT * 10)
    sentencepiece.SentencePieceTrainer.Train(
        input=str(path / "text"),
        model_prefix=str(path / "m"),
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",  # as LLaMA's
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return (path / "m.model").read_bytes()


def test_only_tokenizer_files_are_copied(tmp_path: Path):
    source = tmp_path / "hf"
    hf_models.make("llama", source)
    kept = {"tokenizer.json": TOKENIZER, "tokenizer_config.json": b"{ }", "chat_template.jinja": b"{{ messages }}"}
    dropped = {
        "modeling_evil.py": b"raise SystemExit",
        "README.md": b"",
        "tokenization.py": b"",
        "training_args.bin": b"",
    }
    for name, content in {**kept, **dropped}.items():
        (source / name).write_bytes(content)
    llama.convert(source, tmp_path / "ckpt")
    assert {f.name for f in (tmp_path / "ckpt").iterdir()} == {"config.json", "params", "params.sha256", *kept}
    export.export(tmp_path / "ckpt", tmp_path / "back")
    for folder in ("ckpt", "back"):
        assert {name: (tmp_path / folder / name).read_bytes() for name in kept} == kept
    assert not any((tmp_path / "back" / name).exists() for name in dropped)


def test_the_builtin_tokenizer_is_exported_for_every_version_of_transformers(tmp_path: Path):
    export.export(builtin.FOLDER, tmp_path / "hf")
    said = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["tokenizer_class"]
    assert said == "PreTrainedTokenizerFast"  # version 4 knows no TokenizersBackend
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf"), load_tokenizer(builtin.FOLDER)
    assert theirs(TEXT)["input_ids"] == ours(TEXT)["input_ids"]


def test_none_is_a_warning_and_another_can_be_named(tmp_path: Path):
    hf_models.make("llama", tmp_path / "hf")
    assert "holds no tokenizer" in run("llama", tmp_path / "hf", tmp_path / "bare").err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_bytes(TOKENIZER)
    result = run("llama", tmp_path / "hf", tmp_path / "ckpt", "--tokenizer", tmp_path / "other")
    assert "warning:" not in result.err
    assert (tmp_path / "ckpt" / "tokenizer.json").read_bytes() == TOKENIZER
    result = run("llama", tmp_path / "hf", tmp_path / "no", "--tokenizer", tmp_path / "hf")
    assert result.code == 2
    assert "holds no Hugging Face tokenizer" in result.last
    assert not (tmp_path / "no").exists()


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    model = hf_models.make("llama", tmp_path / "hf", num_hidden_layers=1, intermediate_size=96, vocab_size=320)
    write_meta(model, tmp_path / "meta", 1, llama3=False, multiple_of=16)
    return tmp_path / "meta"


@pytest.mark.parametrize("place", [".", ".."], ids=["beside the weights", "above, as LLaMA 1"])
def test_sentencepiece(place: str, meta: Path, sentencepiece_model: bytes, tmp_path: Path):
    (meta / place / "tokenizer.model").write_bytes(sentencepiece_model)
    assert "warning:" not in run("llama", meta, tmp_path / "ckpt").err
    converted = transformers.AutoTokenizer.from_pretrained(tmp_path / "ckpt")
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    for text in (TEXT, "naïve  café", "x"):
        assert converted(text)["input_ids"] == [reference.bos_id(), *reference.encode(text)]
        assert converted.decode(reference.encode(text)) == reference.decode(reference.encode(text))


def test_tiktoken_asks_for_a_tokenizer(meta: Path, tmp_path: Path):
    (meta / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    result = run("llama", meta, tmp_path / "ckpt")
    assert result.code == 0
    assert "name a tokenizer with --tokenizer" in result.err
    assert not list((tmp_path / "ckpt").glob("tokenizer*"))
