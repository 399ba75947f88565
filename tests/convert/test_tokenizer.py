"""Tokenizer files come along byte for byte; bare vocabularies are converted."""

import base64
import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest
import sentencepiece
import tiktoken
import tokenizers
import transformers

from jaxspec.checkpoint import builtin
from jaxspec.checkpoint.tokenizer import Tokenizer, load_tokenizer
from jaxspec.convert import llama, tokenizer, vocabulary
from tests import hf_models
from tests.checkpoints import byte_tokenizer
from tests.convert.commands import run
from tests.convert.test_meta import write_meta
from tests.tokenizers import LLAMA3_SPLIT, NASTY, SPLIT, loaded, of_bytes, write

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
PIECES = importlib.import_module("sentencepiece.sentencepiece_model_pb2")  # without types
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
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    model = PIECES.ModelProto.FromString((path / "m.model").read_bytes())
    for piece in model.pieces:
        if len(piece.piece) > 1 and not piece.piece.strip("▁"):
            piece.score = -1e9  # as in LLaMA's: runs of spaces are merged last, though their ids are low
    return model.SerializeToString()


def brought(source: Path, folder: Path) -> Tokenizer:
    """The tokenizer of a model's folder, as conversion writes it to this new one."""
    folder.mkdir()
    assert tokenizer.copy_or_make(source, folder) == "PreTrainedTokenizerFast"
    return loaded(folder)


def test_only_tokenizer_files_are_copied(tmp_path: Path):
    source = tmp_path / "hf"
    hf_models.make("llama", source)
    kept = {"tokenizer.json": TOKENIZER, "tokenizer_config.json": b"{ }", "chat_template.jinja": b"{{ messages }}"}
    dropped = dict.fromkeys(
        ("modeling_evil.py", "README.md", "tokenization.py", "training_args.bin"), b"raise SystemExit"
    )
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
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf"), loaded(builtin.FOLDER)
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
    converted = loaded(tmp_path / "ckpt")
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    for text in (TEXT, "naïve  café", "x", *(text for text in NASTY if "<" not in text)):
        assert converted.encode(text) == [reference.bos_id(), *reference.encode(text)]
        assert converted.decode(reference.encode(text)) == reference.decode(reference.encode(text))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_without_a_tokenizer_json_ids_are_those_of_sentencepiece(
    family: str, sentencepiece_model: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    for number, (config, before, after) in enumerate(
        (
            ({"tokenizer_class": "LlamaTokenizer", "chat_template": "x", **NAMED}, [1], []),
            ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": True}, [], [2]),
            ({"eos_token": {"__type": "AddedToken", "content": "<unk>"}, "add_eos_token": True}, [1], [0]),
            (None, [1], []),
            ({"bos_token": None}, [], []),
        )
    ):
        source, folder = write(tmp_path / f"hf{number}", None, config, model_type=family), tmp_path / f"ckpt{number}"
        (source / "tokenizer.model").write_bytes(sentencepiece_model)
        ours = brought(source, folder)
        assert not capsys.readouterr().err
        assert ours.special_tokens_map.keys() == NAMED.keys() - (["bos_token"] if not before + after else [])
        assert ours.chat_template == (config or {}).get("chat_template")
        for text in (TEXT, *(text for text in NASTY if "<" not in text)):
            ids = reference.encode(text)
            assert ours.encode(text) == [*before, *ids, *after], text
            assert ours.decode(ids) == reference.decode(ids), text


ADDED = {"<|start|>": 320, "<|x|>": 321}


@pytest.mark.parametrize("listed", [True, False], ids=["in added_tokens_decoder", "in the older files"])
@pytest.mark.parametrize("legacy", [True, False])
def test_added_tokens_stand_in_text(listed: bool, legacy: bool, sentencepiece_model: bytes, tmp_path: Path):
    """Fine-tunes without tokenizer.json have the marks of their chats in files beside tokenizer.model."""
    flags = {"normalized": True, "lstrip": False, "rstrip": False, "single_word": False}
    config: dict[str, object] = {"legacy": legacy, **NAMED, "eos_token": "<|x|>"}
    decoder = {str(at): {"content": text, "special": text == "<|x|>", **flags} for text, at in ADDED.items()}
    source = write(tmp_path / "hf", None, config | ({"added_tokens_decoder": decoder} if listed else {}))
    (source / "tokenizer.model").write_bytes(sentencepiece_model)
    if not listed:
        (source / "added_tokens.json").write_text(json.dumps(ADDED))
    ours = brought(source, tmp_path / "out")
    id_of = ours.get_vocab().__getitem__
    assert ours.encode("<|start|>x<|x|>") == [1, 320, *map(id_of, ["▁"] * legacy + ["x"]), 321]
    assert (ours.eos_token_id, "<|start|>" in ours.special_ids) == (321, False)


@pytest.mark.parametrize(
    ("config", "added", "reason"),
    [
        ({}, {"<|x|>": 325}, "the added token '<|x|>' has the id 325, and after"),
        ({"bos_token": "<none>"}, {}, "has no token '<none>', which the config files name as bos_token"),
    ],
)
def test_tokens_that_the_vocabulary_cannot_have_are_named(
    config: dict, added: dict, reason: str, sentencepiece_model: bytes, tmp_path: Path, capsys: pytest.CaptureFixture
):
    source = write(tmp_path / "hf", None, NAMED | config)
    (source / "added_tokens.json").write_text(json.dumps(added))
    (source / "tokenizer.model").write_bytes(sentencepiece_model)
    (tmp_path / "out").mkdir()
    assert tokenizer.copy_or_make(source, tmp_path / "out") is None
    assert reason in capsys.readouterr().err


def test_a_space_follows_special_tokens_unless_legacy_is_false(sentencepiece_model: bytes, tmp_path: Path):
    for legacy in (None, True, False):
        config = {"tokenizer_class": "LlamaTokenizer", **NAMED} | ({} if legacy is None else {"legacy": legacy})
        source, folder = write(tmp_path / f"hf{legacy}", None, config), tmp_path / f"{legacy}"
        (source / "tokenizer.model").write_bytes(sentencepiece_model)
        ours, space = brought(source, folder), "" if legacy is False else "▁"
        id_of = ours.get_vocab().__getitem__
        assert ours.encode("x</s>x") == [1, *map(id_of, ["▁", "x", "</s>", *space, "x"])]


def test_no_space_is_added_where_the_model_or_its_config_has_none(sentencepiece_model: bytes, tmp_path: Path):
    model = PIECES.ModelProto.FromString(sentencepiece_model)
    model.normalizer_spec.add_dummy_prefix = False
    without = model.SerializeToString()
    reference = sentencepiece.SentencePieceProcessor(model_proto=without)
    for number, (config, content) in enumerate(
        (({"legacy": True}, without), ({"legacy": False}, without), ({"add_prefix_space": False}, sentencepiece_model))
    ):
        source, folder = write(tmp_path / f"hf{number}", None, {**config, **NAMED}), tmp_path / f"{number}"
        (source / "tokenizer.model").write_bytes(content)
        ours = brought(source, folder)
        for text in ("x", "  x", "a  b   c"):
            assert ours.encode(text) == [1, *reference.encode(text)]


def test_vocab_json_with_merges_is_read_as_transformers_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bpe = json.loads(of_bytes().to_str())["model"]
    merges = "\n".join(["#version: 0.2", *(" ".join(merge) for merge in bpe["merges"])])
    for number, (family, config) in enumerate(
        (
            ("llama", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "</s>"}),
            ("qwen2", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "</s>"}),
            ("qwen2", {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, **NAMED}),
        )
    ):
        source, folder = write(tmp_path / f"hf{number}", None, config, model_type=family), tmp_path / f"ckpt{number}"
        (source / "vocab.json").write_text(json.dumps(bpe["vocab"]))
        (source / "merges.txt").write_text(merges)
        theirs, ours = transformers.AutoTokenizer.from_pretrained(source), brought(source, folder)
        assert (ours.special_tokens_map, ours.chat_template) == (theirs.special_tokens_map, theirs.chat_template)
        for text in NASTY:
            ids = theirs(text)["input_ids"]
            assert ours.encode(text) == ids, (config, text)
            assert ours.decode(ids) == theirs.decode(ids), (config, text)
    (tmp_path / "out").mkdir()
    for family, kind, added, reason in (
        ("qwen2", "Qwen2Tokenizer", {"<a>": 900}, "'<a>' has the id 900"),
        ("llama", "LlamaTokenizer", {}, "'!' has the id 3"),  # it reads neither file
    ):
        source = write(tmp_path / "hf2", None, {"tokenizer_class": kind}, model_type=family)
        (source / "added_tokens.json").write_text(json.dumps(added))
        assert tokenizer.copy_or_make(source, tmp_path / "out") is None
        assert f"the token {reason}, and not in transformers' {kind}" in capsys.readouterr().err


def ranks(tokens: int) -> dict[bytes, int]:
    """A vocabulary of tiktoken: all bytes, and tokens that join two others, most of them rarely."""
    found = {bytes([byte]): byte for byte in range(256)}
    words = [TEXT.encode()[at : at + width] for width in (2, 3, 4, 6) for at in range(len(TEXT) - width)]
    for word in [*words, *(bytes([a, b]) for a in range(97, 123) for b in range(32, 123))]:
        if (
            len(found) < tokens
            and word not in found
            and any(word[:k] in found and word[k:] in found for k in (1, 2, 3))
        ):
            found[word] = len(found)
    return found


def test_llama_3s_tokenizer_model_is_metas(
    meta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(vocabulary, "_LLAMA3_TOKENS", 900)
    text = ranks(900)
    lines = [b"%s %d" % (base64.b64encode(token), rank) for token, rank in text.items()]
    (meta / "tokenizer.model").write_bytes(b"\n".join(lines))
    ours = brought(meta, tmp_path / "out")
    assert not capsys.readouterr().err
    names = {"<|begin_of_text|>": 900, "<|end_of_text|>": 901, "<|start_header_id|>": 906, "<|eot_id|>": 909}
    assert {name: ours.special_ids[name] for name in names} == names
    assert ours.special_ids["<|reserved_special_token_245|>"] == 900 + 255
    theirs = tiktoken.Encoding("x", pat_str=LLAMA3_SPLIT, mergeable_ranks=text, special_tokens=names)
    for each in (TEXT, *NASTY, "<|start_header_id|>user<|end_header_id|>"[:19] + " x<|eot_id|>"):
        ids = theirs.encode(each, allowed_special="all")
        assert ours.encode(each) == [900, *ids], each
        assert ours.decode(ids) == each


@pytest.mark.parametrize("listed", [False, True])
def test_mistrals_tekken_json_is_mistral_commons(listed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = ranks(900)
    words = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for token, rank in text.items()]
    config = {"pattern": SPLIT, "num_vocab_tokens": 900, "default_vocab_size": 830, "default_num_special_tokens": 30}
    content = {"config": {**config, "version": "v3"}, "vocab": words}
    if listed:
        content["special_tokens"] = [
            {"rank": rank, "token_str": name, "is_control": True}
            for rank, name in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[THINK]"])
        ]
    source = write(tmp_path / "hf", None, None, model_type="mistral")
    (source / "tekken.json").write_text(json.dumps(content))
    ours = brought(source, tmp_path / "out")
    assert not capsys.readouterr().err
    assert (ours.special_ids["[/INST]"], "[THINK]" in ours.special_ids) == (4, listed)
    assert ours.special_ids["<SPECIAL_29>"] == 29
    kept = {token: rank for token, rank in text.items() if rank < 800}
    theirs = tiktoken.Encoding("x", pat_str=SPLIT, mergeable_ranks=kept, special_tokens={})
    for each in (TEXT, *(each for each in NASTY if not any(name in each for name in ("<s>", "[INST]")))):
        ids = [30 + id_ for id_ in theirs.encode(each, disallowed_special=())]
        assert ours.encode(each) == [1, *ids], each
        assert ours.decode(ids) == each
    assert ours.encode("[INST]a[/INST]") == [1, 3, 30 + ord("a"), 4]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("trainer_spec.model_type", 1, "is no BPE"),
        ("normalizer_spec.remove_extra_whitespaces", True, "normalises text"),
        ("pieces.▁▁", 4, "has user-defined pieces with spaces"),
        ("pieces.he", 4, "has rules that tokenizer.json cannot hold: 'xhex he' would get other ids"),
        ("trainer_spec.treat_whitespace_as_suffix", True, "has rules that tokenizer.json cannot hold"),
    ],
)
def test_sentencepiece_models_of_another_kind_are_named(
    field: str, value: object, reason: str, sentencepiece_model: bytes, tmp_path: Path, capsys: pytest.CaptureFixture
):
    model = PIECES.ModelProto.FromString(sentencepiece_model)
    part, name = field.split(".")
    if part == "pieces":
        next(piece for piece in model.pieces if piece.piece == name).type = value  # user-defined
    else:
        setattr(getattr(model, part), name, value)
    (tmp_path / "tokenizer.model").write_bytes(model.SerializeToString())
    (tmp_path / "out").mkdir()
    assert tokenizer.copy_or_make(tmp_path, tmp_path / "out") is None
    assert f"model {reason}" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_the_package_that_reads_sentencepiece_is_named(
    sentencepiece_model: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model)
    (tmp_path / "out").mkdir()
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    for of_meta in (False, True):
        if of_meta:
            (tmp_path / "params.json").write_text("{}")
        assert tokenizer.copy_or_make(tmp_path, tmp_path / "out") is None
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
            tokenizer.copy_or_make(source, tmp_path)
            error = capsys.readouterr().err
            assert ("sets add_bos_token to" in error) == (add != bos)
            assert "add_eos_token" not in error


def test_decoded_text_that_transformers_would_change_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    for backend, named in ((words, True), (of_bytes(), False)):
        source = write(tmp_path / str(named), backend, {"clean_up_tokenization_spaces": True}, model_type="llama")
        config = source / "tokenizer_config.json"
        config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())  # as Windows' editors begin a file
        tokenizer.copy_or_make(source, tmp_path)
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
    ours = loaded(tmp_path / "ckpt")
    assert (ours.chat_template, ours.encode("x")[0]) == ("x", 1)
    assert model.config.vocab_size == 500


def test_another_tiktoken_vocabulary_is_named(meta: Path, tmp_path: Path):
    (meta / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    result = run("llama", meta, tmp_path / "ckpt")
    assert result.code == 0
    assert "is a tiktoken file of 2 tokens, and LLaMA 3's has 128,000" in result.err
    assert "takes a folder with one as --tokenizer" in result.err
    assert not list((tmp_path / "ckpt").glob("tokenizer*"))
