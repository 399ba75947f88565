"""The tokenizer that is learnt, as transformers reads it."""

from pathlib import Path

import pytest

from jaxspec.loading import load_tokenizer
from jaxspec.train import tokenizer

TEXTS = ["def f(x):\n    return x + 1\n" * 3, "<s> is spelt out </s>, and naïve 🙂\n" * 3]


def test_round_trip_through_transformers(tmp_path: Path):
    learnt = tokenizer.learn(TEXTS, 280)
    rows = tokenizer.encode(learnt, TEXTS)
    tokenizer.save(learnt, tmp_path, max_length=64)
    assert {"tokenizer.json", "tokenizer_config.json"} <= {file.name for file in tmp_path.iterdir()}
    loaded = load_tokenizer(tmp_path)
    assert (loaded.bos_token, loaded.bos_token_id) == (tokenizer.BOS, tokenizer.BOS_ID)
    assert (loaded.eos_token, loaded.eos_token_id) == (tokenizer.EOS, tokenizer.EOS_ID)
    assert len(loaded) == 280
    for text, row in zip(TEXTS, rows, strict=True):
        assert (row[0], row[-1]) == (tokenizer.BOS_ID, tokenizer.EOS_ID)
        assert set(row[1:-1].tolist()).isdisjoint((tokenizer.BOS_ID, tokenizer.EOS_ID))
        assert loaded.decode(row[1:-1].tolist()) == text
    assert loaded(TEXTS[0])["input_ids"] == rows[0][:-1].tolist()


def test_encodes_no_more_than_needed():
    learnt = tokenizer.learn(TEXTS, 270)
    many = ["some text"] * 1000
    some = tokenizer.encode(learnt, many, enough=100)
    assert 100 <= sum(map(len, some)) < 1000
    assert len(tokenizer.encode(learnt, many, enough=10**9)) == 1000


def test_vocabularies_that_cannot_be():
    with pytest.raises(ValueError, match="--vocab-size must be at least 258"):
        tokenizer.learn(TEXTS, 100)
    with pytest.raises(ValueError, match=r"too little text: it yields \d\d\d tokens, not 5000"):
        tokenizer.learn(TEXTS, 5000)
