"""Tokenizer files come along byte for byte; Meta's are converted."""

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
import transformers

from jaxspec.checkpoint import builtin
from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.convert import llama, tokenizer
from tests import hf_models
from tests.checkpoints import byte_tokenizer
from tests.convert.commands import run
from tests.convert.test_meta import write_meta
from tests.tokenizers import NASTY, of_bytes, write

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
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
    llama.export(tmp_path / "ckpt", tmp_path / "back")
    for folder in ("ckpt", "back"):
        assert {name: (tmp_path / folder / name).read_bytes() for name in kept} == kept
    assert not any((tmp_path / "back" / name).exists() for name in dropped)


def test_the_builtin_tokenizer_is_exported_for_every_version_of_transformers(tmp_path: Path):
    llama.export(builtin.FOLDER, tmp_path / "hf")
    said = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["tokenizer_class"]
    assert said == "PreTrainedTokenizerFast"  # version 4 knows no TokenizersBackend
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf"), load_tokenizer(builtin.FOLDER)
    assert ours is not None
    assert theirs(TEXT)["input_ids"] == ours.encode(TEXT)


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
    converted = load_tokenizer(tmp_path / "ckpt")
    assert converted is not None
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    for text in (TEXT, "naïve  café", "x", *(text for text in NASTY if "<" not in text)):
        assert converted.encode(text) == [reference.bos_id(), *reference.encode(text)]
        assert converted.decode(reference.encode(text)) == reference.decode(reference.encode(text))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_without_a_tokenizer_json_ids_are_those_of_transformers_in_the_original_folder(
    family: str, sentencepiece_model: bytes, tmp_path: Path
):
    """Sentencepiece models, and vocab.json with merges.txt."""
    bpe = json.loads(of_bytes().to_str())["model"]
    merges = "\n".join(["#version: 0.2", *(" ".join(merge) for merge in bpe["merges"])])
    files = {
        "tokenizer.model": sentencepiece_model,
        "vocab.json": json.dumps(bpe["vocab"]).encode(),
        "merges.txt": merges.encode(),
    }
    for number, (kept, config) in enumerate(
        (
            (["tokenizer.model"], {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, **NAMED}),
            (["tokenizer.model"], {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True, **NAMED}),
            (
                ["tokenizer.model"],
                {"tokenizer_class": "CodeLlamaTokenizer", "chat_template": "x", **NAMED},
            ),
            (["vocab.json", "merges.txt"], {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "</s>"}),
            (["vocab.json", "merges.txt"], {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, **NAMED}),
        )
    ):
        source, folder = write(tmp_path / f"hf{number}", None, config, model_type=family), tmp_path / f"ckpt{number}"
        if family == "mistral" and "vocab.json" in kept:
            continue  # transformers reads none there either
        for name in kept:
            (source / name).write_bytes(files[name])
        folder.mkdir()
        assert tokenizer.bring(source, folder) == "PreTrainedTokenizerFast"
        theirs, ours = transformers.AutoTokenizer.from_pretrained(source), load_tokenizer(folder)
        assert ours is not None
        assert (ours.special_tokens_map, ours.chat_template) == (theirs.special_tokens_map, theirs.chat_template)
        for text in NASTY:
            ids = theirs(text)["input_ids"]
            assert ours.encode(text) == ids, (config, text)
            assert ours.decode(ids) == theirs.decode(ids), (config, text)


def test_a_reading_that_is_not_sentencepieces_is_named(
    sentencepiece_model: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = write(tmp_path / "hf", None, {"tokenizer_class": "LlamaTokenizer", **NAMED}, model_type="llama")
    (source / "tokenizer.model").write_bytes(sentencepiece_model)
    tokenizer.bring(source, tmp_path)
    assert "otherwise than sentencepiece does: '  x' becomes [" in capsys.readouterr().err


def test_the_package_that_reads_sentencepiece_is_named(
    sentencepiece_model: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model)
    (tmp_path / "out").mkdir()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for from_meta in (False, True):
        assert tokenizer.bring(tmp_path, tmp_path / "out", from_meta) is None
        assert "pip install sentencepiece protobuf" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_what_cannot_be_read_is_a_warning(tmp_path: Path):
    hf_models.make("llama", tmp_path / "hf")
    for number, (name, content) in enumerate((("vocab.json", b"{"), ("tokenizer.model", b"x"), ("tekken.json", b"{}"))):
        source, ckpt = tmp_path / f"hf{number}", tmp_path / f"ckpt{number}"
        shutil.copytree(tmp_path / "hf", source)
        (source / name).write_bytes(content)
        result = run("llama", source, ckpt)
        assert result.code == 0
        (warning,) = (line for line in result.err.splitlines() if line.startswith("warning:"))
        assert "holds no tokenizer that can be read (" in warning
        assert not (ckpt / name).exists()
        assert load_tokenizer(ckpt) is None


def test_settings_that_tokenizer_json_contradicts_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for add in (True, False):
        config = {"add_bos_token": add, "add_eos_token": False, **NAMED}
        for bos in (True, False):
            source = write(tmp_path / f"{add}{bos}", of_bytes(bos=bos), config, model_type="llama")
            tokenizer.bring(source, tmp_path)
            error = capsys.readouterr().err
            assert ("sets add_bos_token to" in error) == (add != bos)
            assert "add_eos_token" not in error


def test_decoded_text_that_transformers_would_change_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    for backend, named in ((words, True), (of_bytes(), False)):
        source = write(tmp_path / str(named), backend, {"clean_up_tokenization_spaces": True}, model_type="llama")
        config = source / "tokenizer_config.json"
        config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())  # as Windows' editors begin a file
        tokenizer.bring(source, tmp_path)
        assert ("sets clean_up_tokenization_spaces to true and is ignored" in capsys.readouterr().err) == named


def test_the_tokenizer_of_a_checkpoint_is_replaced(tmp_path: Path):
    model = hf_models.make("llama", tmp_path / "hf", vocab_size=500)
    write(tmp_path / "hf", of_bytes(), NAMED)
    llama.convert(tmp_path / "hf", tmp_path / "ckpt")
    assert "tokenizer: yes" in run("inspect", tmp_path / "ckpt").out
    file = tmp_path / "ckpt" / "config.json"
    values = {**json.loads(file.read_text()), "tokenizer_class": "LlamaTokenizer"}
    file.write_text(json.dumps(values))
    (tmp_path / "ckpt" / "added_tokens.json").write_text("{}")
    weights = {f: f.read_bytes() for f in (tmp_path / "ckpt" / "params").rglob("*") if f.is_file()}

    other = write(tmp_path / "other", of_bytes(bos=True), {**NAMED, "chat_template": "x"}, model_type="llama")
    (tmp_path / "none").mkdir()
    before = sorted(f.name for f in (tmp_path / "ckpt").iterdir())
    for source, target, reason in (
        (tmp_path / "none", tmp_path / "ckpt", "holds no tokenizer that can be read, so"),
        (other, tmp_path / "none", "there is no readable jaxspec checkpoint at"),
    ):
        result = run("tokenizer", source, target)
        assert result.code == 2
        assert reason in result.last
    assert before == sorted(f.name for f in (tmp_path / "ckpt").iterdir())

    assert run("tokenizer", other, tmp_path / "ckpt").code == 0
    assert json.loads(file.read_text()) == {**values, "tokenizer_class": "PreTrainedTokenizerFast"}
    assert "tokenizer: yes" in run("inspect", tmp_path / "ckpt").out
    assert {f: f.read_bytes() for f in weights} == weights
    assert not (tmp_path / "ckpt" / "added_tokens.json").exists()
    ours = load_tokenizer(tmp_path / "ckpt")
    assert ours is not None
    assert (ours.chat_template, ours.encode("x")[0]) == ("x", 1)
    assert model.config.vocab_size == 500


def test_tiktoken_asks_for_a_tokenizer(meta: Path, tmp_path: Path):
    (meta / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    result = run("llama", meta, tmp_path / "ckpt")
    assert result.code == 0
    assert "takes a folder with one as --tokenizer" in result.err
    assert not list((tmp_path / "ckpt").glob("tokenizer*"))
