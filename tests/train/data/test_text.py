"""Files, the held-out split and the windows."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.train.data import records, text
from jaxspec.train.data.records import Conversation, Message
from jaxspec.train.data.text import Document, Encoded

FILL = 1


def numbered(count: int) -> Encoded:
    """Tokens that all count, from 0."""
    return Encoded(np.arange(count, dtype=np.int32), np.ones(count, bool))


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=8), st.integers(2, 16))
def test_windows_keep_every_token_once_and_in_order(counted: list[list[bool]], length: int):
    sizes = [len(row) for row in counted]
    total = sum(sizes)
    rows = np.split(np.arange(total, dtype=np.int32), np.cumsum(sizes)[:-1])
    encoded = [Encoded(row, np.array(mask)) for row, mask in zip(rows, counted, strict=True)]
    packed = text.windows(encoded, length, FILL)
    assert packed.tokens.shape == packed.segment.shape == packed.counted.shape == (-(-total // length), length)
    tokens, segment, counts = (np.ravel(each) for each in (packed.tokens, packed.segment, packed.counted))
    assert tokens[:total].tolist() == list(range(total))
    assert segment[:total].tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()
    assert counts[:total].tolist() == list(itertools.chain(*counted))
    assert set(tokens[total:].tolist()) <= {FILL}
    assert set(segment[total:].tolist()) <= {len(sizes)}
    assert not counts[total:].any()


def test_held_out_split_is_stable_and_disjoint():
    talk = (Message("user", "hi"), Message("assistant", "hello"))
    names = [f"package/module{i}.py" for i in range(2000)]
    found = [Conversation(name, talk) if i % 2 else Document(name, "x") for i, name in enumerate(names)]
    kept, held_out = records.split(found)
    assert sorted([*kept, *held_out], key=lambda each: each.name) == sorted(found, key=lambda each: each.name)
    assert 30 < len(held_out) < 70
    assert {type(each) for each in held_out} == {Document, Conversation}
    assert records.split([*held_out, Document("kept", "x")]) == ([Document("kept", "x")], held_out)
    names = ("shutil.py", "json/decoder.py", "sched.py")
    assert [name for name in names if text.is_held_out(name)] == ["shutil.py", "sched.py"]


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


def test_standard_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    names = {document.name for document in text.standard_library()}
    assert {"os.py", "json/decoder.py", "unittest/case.py"} <= names
    assert not any(
        name.startswith(("test/", "site-packages/", "encodings/", "pydoc_data/")) or "/tests/" in name for name in names
    )
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(ValueError, match="name a folder with --data"):
        text.standard_library()
