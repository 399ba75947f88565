"""Tokenizers of GGUF files: ids are those that llama.cpp gave for the same file."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import gguf_tokenizer
from tests.convert import record_gguf_ids

RECORDED = json.loads(record_gguf_ids.FILE.read_text())
KEY = "tokenizer.ggml."


def read(metadata: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer of a vocabulary, and its tokenizer_config.json."""
    files = gguf_tokenizer.files(metadata, "x.gguf")
    return Tokenizer.from_str(files["tokenizer.json"]), json.loads(files["tokenizer_config.json"])


@pytest.mark.parametrize("kind", ["sentencepiece", "spaceless", *gguf_tokenizer.SPLITS])
def test_ids_are_those_of_llama_cpp(kind: str):
    tokenizer, _ = read(record_gguf_ids.vocabulary(kind))
    theirs = RECORDED["ids"][RECORDED["same"][kind]]
    assert len(theirs) == len(record_gguf_ids.PAGE)
    for text, ids in zip(record_gguf_ids.PAGE, theirs, strict=True):
        assert tokenizer.encode(text).ids == ids, (text, [tokenizer.id_to_token(id_) for id_ in ids])


@pytest.mark.parametrize("kind", ["sentencepiece", "spaceless", "llama-bpe", "smollm"])
def test_text_comes_back(kind: str):
    tokenizer, _ = read(record_gguf_ids.vocabulary(kind))
    for text in record_gguf_ids.PAGE:
        if not any(special in text for special in ("<s>", "<unk>", "<|", "▁")):
            assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_file_without_a_kind_has_the_default_with_a_warning(capsys: pytest.CaptureFixture[str]):
    metadata = record_gguf_ids.vocabulary("default")
    del metadata[f"{KEY}pre"]
    tokenizer, _ = read(metadata)
    assert "names no pre-tokenizer" in capsys.readouterr().err
    assert [tokenizer.encode(text).ids for text in record_gguf_ids.PAGE] == RECORDED["ids"]["default"]


def test_named_chat_templates():
    first = "tokenizer.chat_template"
    given = {first: "d", f"{first}s": ["tool_use"], f"{first}.tool_use": "t"}
    metadata = record_gguf_ids.vocabulary("smollm") | given
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    assert read(metadata)[1]["chat_template"] == named
    assert read(metadata | {f"{KEY}add_bos_token": True})[1]["chat_template"][1]["template"] == "{{ bos_token }}t"
    with pytest.raises(CheckpointError, match=r"chat template 'tool_use' in .* is not a text"):
        read(metadata | {f"{first}.tool_use": 5})


@pytest.mark.parametrize("kind", ["sentencepiece", "llama-bpe", "smollm"])
@pytest.mark.parametrize("bos", [True, False, None])
@pytest.mark.parametrize("eos", [True, False, None])
def test_the_file_says_which_tokens_surround_a_text(kind: str, bos: bool | None, eos: bool | None):
    given = {f"{KEY}add_bos_token": bos, f"{KEY}add_eos_token": eos, "tokenizer.chat_template": "{{ bos_token }}"}
    metadata = record_gguf_ids.vocabulary(kind) | {key: value for key, value in given.items() if value is not None}
    tokenizer, config = read(metadata)
    inside = tokenizer.encode("hello", add_special_tokens=False).ids
    adds_bos = kind != "smollm" if bos is None else bos
    first, last = tokenizer.token_to_id(config["bos_token"]), tokenizer.token_to_id(config["eos_token"])
    assert tokenizer.encode("hello").ids == [first] * adds_bos + inside + [last] * bool(eos)
    assert (config["add_bos_token"], config["add_eos_token"]) == (adds_bos, bool(eos))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["chat_template"] == "{{ bos_token }}"
    assert config.get("unk_token") == ("<unk>" if kind == "sentencepiece" else None)


def test_all_tokens_that_end_an_answer_are_eos():
    metadata = record_gguf_ids.vocabulary("smollm")
    size = len(metadata[f"{KEY}tokens"])
    for token in ("<|im_end|>", "<|eot_id|>", "<|stop|>"):
        metadata[f"{KEY}tokens"].append(token)
        metadata[f"{KEY}token_type"].append(1)  # some files say that they are normal
    metadata[f"{KEY}tokens"][5:7] = "<|file_sep|>", "files"
    metadata |= {f"{KEY}eot_token_id": size + 2, f"{KEY}fim_rep_token_id": 6, f"{KEY}padding_token_id": 7}
    found = gguf_tokenizer.special_tokens(metadata, "x.gguf")
    assert found == {"bos": size - 4, "eos": (size - 3, size + 2, 6, 5, size, size + 1), "pad": 7}
    assert read(metadata)[0].encode("12<|im_end|>").ids[-1] == size


@pytest.mark.parametrize(
    ("kind", "changed", "words"),
    [
        ("smollm", {"pre": "novel"}, "the pre-tokenizer 'novel'"),
        ("smollm", {"model": "bert"}, "a tokenizer of the kind 'bert'"),
        ("smollm", {"normalizer.lowercase": True}, "tokenizer.ggml.normalizer.lowercase True"),
        ("sentencepiece", {"remove_extra_whitespaces": True}, "tokenizer.ggml.remove_extra_whitespaces True"),
        ("smollm", {"merges": None}, "x.gguf is damaged"),
        ("sentencepiece", {"scores": [0.0]}, "x.gguf is damaged"),
        ("smollm", {"tokens": ["a", "a"]}, "different tokens"),
        ("smollm", {"token_type": [1]}, "a type of each"),
        ("llama-bpe", {"bos_token_id": None}, "x.gguf is damaged (KeyError('bos')"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(kind: str, changed: dict[str, Any], words: str):
    metadata = record_gguf_ids.vocabulary(kind)
    for key, value in changed.items():
        metadata[f"{KEY}{key}"] = value
        if value is None:
            del metadata[f"{KEY}{key}"]
    with pytest.raises(CheckpointError) as refused:
        read(metadata)
    assert words in str(refused.value)
    assert "--tokenizer" in str(refused.value)


@pytest.mark.parametrize("id_", [415, -1, "1", 10**9])
def test_a_special_token_outside_the_vocabulary_is_refused(id_: Any):
    with pytest.raises(CheckpointError, match=rf"x\.gguf has tokenizer\.ggml\.eot_token_id {id_}, which is outside"):
        gguf_tokenizer.special_tokens(record_gguf_ids.vocabulary("smollm") | {f"{KEY}eot_token_id": id_}, "x.gguf")


def test_empty_tokens_have_names():
    listed, _ = gguf_tokenizer._vocabulary({f"{KEY}tokens": ["a", "", "", "b"]}, "x.gguf")
    assert [*listed] == ["a", "[EMPTY_1]", "[EMPTY_2]", "b"]
