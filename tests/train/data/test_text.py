"""Files, the held-out split and the windows."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.train.data import sources, text
from jaxspec.train.data.records import Conversation
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
    names = [f"package/module{i}.py" for i in range(2000)]
    found = [Document(name, "x") for name in names]
    kept, held_out = sources.split(found)
    assert sorted([*kept, *held_out], key=name_of) == sorted(found, key=name_of)
    assert 30 < len(held_out) < 70
    assert sources.split([*held_out, Document("kept", "x")]) == ([Document("kept", "x")], held_out)
    assert [name for name in ("shutil.py", "json/decoder.py", "sched.py") if text.is_held_out(name)] == [
        "shutil.py",
        "sched.py",
    ]


def name_of(found: Document | Conversation) -> str:
    return found.name


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


def test_one_file(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "empty").touch()
    assert text.document(tmp_path / "a.txt") == Document("a.txt", "a text")
    with pytest.raises(ValueError, match="empty holds no text: it is empty or not UTF-8"):
        text.document(tmp_path / "empty")
    with pytest.raises(ValueError, match="is neither a file nor a folder; name one that holds text"):
        text.document(tmp_path)


def test_standard_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    names = {document.name for document in text.standard_library()}
    assert {"os.py", "json/decoder.py", "unittest/case.py"} <= names
    assert not any(
        name.startswith(("test/", "site-packages/", "encodings/", "pydoc_data/")) or "/tests/" in name for name in names
    )
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(ValueError, match="name a folder with --data"):
        text.standard_library()
