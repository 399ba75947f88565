"""The trained tokenizer, as transformers reads it."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.train.data import tokenizer

TEXTS = ["def f(x):\n    return x + 1\n" * 3, "<s> is spelt out </s>, and naïve 🙂\n" * 3]


def test_round_trip_through_transformers(tmp_path: Path):
    learnt = tokenizer.learn(TEXTS, 280)
    tokenizer.save(learnt, tmp_path, max_length=64)
    assert {"tokenizer.json", "tokenizer_config.json"} <= {file.name for file in tmp_path.iterdir()}
    said = json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"]
    assert said == "PreTrainedTokenizerFast"  # a name that version 4 of transformers knows too
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    assert (loaded.special_tokens_map["bos_token"], loaded.bos_token_id) == (tokenizer.BOS, tokenizer.BOS_ID)
    assert (loaded.special_tokens_map["eos_token"], loaded.eos_token_id) == (tokenizer.EOS, tokenizer.EOS_ID)
    assert len(loaded.get_vocab()) == 280
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == loaded.encode(text)
        (row,) = loaded.encode_as_text([text])
        assert row[0] == tokenizer.BOS_ID
        assert set(row[1:]).isdisjoint((tokenizer.BOS_ID, tokenizer.EOS_ID))
        assert loaded.decode(row[1:]) == text


def test_vocabularies_that_cannot_be():
    with pytest.raises(ValueError, match="--vocab-size must be at least 258"):
        tokenizer.learn(TEXTS, 100)
    with pytest.raises(ValueError, match=r"too little text: it gives \d\d\d tokens, not 5000"):
        tokenizer.learn(TEXTS, 5000)
