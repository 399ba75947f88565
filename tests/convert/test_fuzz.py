"""Untrusted files: whatever is wrong with one, conversion ends with one sentence or with a sound model.

Damage that makes another valid file (a digit of a weight, the name of a field that is not read) may pass; what may not
is a traceback, another exit code, or anything written beside a refusal.
"""

import contextlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from jaxspec.checkpoint import config_json, heads
from tests import hf_models
from tests.checkpoints import byte_tokenizer
from tests.convert.commands import run, tensors

SETTINGS = hypothesis.settings(
    max_examples=25, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None
)
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
STRANGE = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        3,
        0.5,
        2**31,
        2**63,
        10**30,
        float("nan"),
        float("inf"),
        "",
        "4",
        "../x",
        [],
        [1],
        [None],
        {},
    ]
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of a small model, by name."""
    folder = tmp_path_factory.mktemp("sound")
    hf_models.make("llama", folder, num_hidden_layers=1, vocab_size=259)
    byte_tokenizer().save_pretrained(folder)
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture
def convert(files: dict[str, bytes], tmp_path: Path) -> Callable[..., None]:
    """Converts these files with some of them changed, and checks how it ends."""

    def check(**changed: bytes) -> None:
        source, out = tmp_path / "source", tmp_path / "out" / "ckpt"
        source.mkdir(exist_ok=True)
        out.parent.mkdir(exist_ok=True)
        for name, content in {**files, **changed}.items():
            (source / name).write_bytes(content)
        found = run("llama", source, out)
        assert "Traceback" not in found.err
        if found.code == 0:
            config = config_json.read_config(out)
            assert run("inspect", out, "--verify").code == 0 and config.model.norm_eps > 0
            run_away(out.parent)
            return
        assert found.code == 2, found.err
        assert found.last.startswith("error: ") and len(found.last) < 1000
        assert list(out.parent.iterdir()) == [], "something was written"

    return check


def run_away(folder: Path) -> None:
    """Empties a folder."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@SETTINGS
@hypothesis.given(name=st.sampled_from(FILES), at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit(name: str, at: float, bit: int, files: dict[str, bytes], convert: Callable[..., None]):
    content = bytearray(files[name])
    content[int(at * min(len(content), 4000))] ^= 1 << bit  # in a header rather than in a weight
    convert(**{name: bytes(content)})


@SETTINGS
@hypothesis.given(name=st.sampled_from(FILES), share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file(name: str, share: float, files: dict[str, bytes], convert: Callable[..., None]):
    convert(**{name: files[name][: int(share * len(files[name]))]})


@SETTINGS
@hypothesis.given(data=st.data(), value=STRANGE)
def test_a_strange_value_in_a_config(data: st.DataObject, value: Any, files: dict[str, bytes], convert: Callable):
    name = data.draw(st.sampled_from(FILES[:2]))
    config = json.loads(files[name])
    config[data.draw(st.sampled_from(sorted(config)))] = value
    convert(**{name: json.dumps(config).encode()})


@SETTINGS
@hypothesis.given(
    field=st.sampled_from(["dtype", "shape", "data_offsets"]),
    value=st.one_of(STRANGE, st.sampled_from(["I8", "BOOL", "F64", [2**62, 2**62], [-1], [0, 2**63], [8, 4]])),
)
def test_a_strange_header(field: str, value: Any, files: dict[str, bytes], convert: Callable[..., None]):
    """Huge shapes, wrong dtypes, places outside the file."""
    content = files["model.safetensors"]
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["model.norm.weight"][field] = value
    text = json.dumps(header).encode()
    convert(**{"model.safetensors": struct.pack("<Q", len(text)) + text + content[8 + length :]})


class Trap:
    """Unpickling this would create a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_with_a_payload(protocol: int, files: dict[str, bytes], tmp_path: Path):
    source, trapped = tmp_path / "source", tmp_path / "trapped"
    source.mkdir()
    (source / "config.json").write_bytes(files["config.json"])
    (source / "model.safetensors").write_bytes(files["model.safetensors"])
    state: dict[str, Any] = {name: torch.from_numpy(array) for name, array in tensors(source).items()}
    (source / "model.safetensors").unlink()
    for wrapped in (False, True):
        file = source / "pytorch_model.bin"
        if wrapped:
            torch.save({**state, "trap": Trap(trapped)}, file, pickle_protocol=max(protocol, 2))
        else:
            file.write_bytes(pickle.dumps({"trap": Trap(trapped)}, protocol))
        found = run("llama", source, tmp_path / "ckpt")
        assert found.code == 2 and "pytorch_model.bin" in found.last and "Traceback" not in found.err
        assert not trapped.exists() and not (tmp_path / "ckpt").exists()


@SETTINGS
@hypothesis.given(data=st.data(), value=STRANGE)
def test_a_strange_value_in_a_checkpoints_own_config(data: st.DataObject, value: Any, tmp_path: Path):
    """Of a head likewise: it is read whole, or refused by its file."""
    head = data.draw(st.booleans())
    model: dict[str, Any] = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 2,
                             "num_kv_heads": 2, "head_dim": 4, "rope": {"theta": 1e4, "factor": 1.0}}  # fmt: skip
    values = {"format": heads.FORMAT if head else config_json.FORMAT, "version": 1, "model": model}
    values |= {"dtype": "float32", "source_dtype": "float32"}
    values |= {"drafter": "eagle", "settings": {}} if head else {"family": "llama", "source_format": "meta", "eos": [2]}
    values |= {} if head else {"bos": 1, "pad": None}
    place = data.draw(st.sampled_from([values, model, model["rope"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = value
    (tmp_path / "config.json").write_text(json.dumps(values))
    with contextlib.suppress(config_json.CheckpointError):
        found = heads.read_config(tmp_path) if head else config_json.read_config(tmp_path)
        assert found.model.norm_eps > 0 and np.isfinite(found.model.rope.theta)
