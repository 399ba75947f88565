"""Files, the held-out split and the windows."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.train import text
from jaxspec.train.text import Document

FILL = 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(2, 16))
def test_windows_keep_every_token_once_and_in_order(lengths: list[int], length: int):
    rows = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    packed = text.windows(rows, length, FILL)
    assert packed.tokens.shape == (-(-sum(lengths) // length), length)
    assert packed.tokens[packed.counted].tolist() == list(range(sum(lengths)))
    assert packed.segment[packed.counted].tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()
    assert set(packed.tokens[~packed.counted].tolist()) <= {FILL}


def test_batches_show_every_window_once_an_epoch():
    packed = text.windows([np.arange(40)], 4, FILL)
    seen = [tuple(batch.tokens[:, 0].tolist()) for batch in islice(text.batches(packed, 2, seed=3), 10)]
    first, second = seen[:5], seen[5:]
    assert sorted(sum(first, ())) == sorted(sum(second, ())) == list(range(0, 40, 4))
    assert first != second
    again = text.batches(packed, 2, seed=3)
    assert seen[0] == tuple(next(again).tokens[:, 0].tolist())


def test_too_few_windows_for_a_batch():
    with pytest.raises(ValueError, match="too little text: it fills 3 windows of 4 tokens and a batch takes 5"):
        next(text.batches(text.windows([np.arange(10)], 4, FILL), 5, seed=0))


def test_held_out_split_is_stable_and_disjoint():
    names = [f"package/module{i}.py" for i in range(2000)]
    found = [Document(name, "x") for name in names]
    kept, held_out = text.split(found)
    assert sorted(kept + held_out, key=names_of) == sorted(found, key=names_of)
    assert 30 < len(held_out) < 70
    assert text.split(held_out) == ([], held_out)
    assert [name for name in ("shutil.py", "json/decoder.py", "sched.py") if text.is_held_out(name)] == [
        "shutil.py",
        "sched.py",
    ]


def names_of(document: Document) -> str:
    return document.name


def test_documents_of_a_folder(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("é", encoding="utf-8")
    (tmp_path / "a.md").write_bytes(b"first\r\n")
    (tmp_path / "empty").touch()
    (tmp_path / "latin1").write_bytes(b"\xe9")
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref")
    assert text.documents(tmp_path) == [Document("a.md", "first\r\n"), Document("b/notes.txt", "é")]


def test_folders_without_text(tmp_path: Path):
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        text.documents(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no text"):
        text.documents(tmp_path)


def test_standard_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    names = {document.name for document in text.standard_library()}
    assert {"os.py", "json/decoder.py", "unittest/case.py"} <= names
    assert not any(name.startswith(("test/", "site-packages/")) or "/tests/" in name for name in names)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(ValueError, match="name a folder with --data"):
        text.standard_library()
