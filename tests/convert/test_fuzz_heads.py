"""Published heads and Meta's shards from strangers: conversion ends in one sentence, or in a head that is sound."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from jaxspec.checkpoint import heads
from tests import hf_models
from tests.convert import dflash_heads, eagle3_heads, eagle_heads, test_medusa, test_meta
from tests.convert.commands import run
from tests.convert.test_fuzz import STRANGE, run_away

KINDS = ("eagle", "eagle3", "eagle3 speculators", "medusa", "dflash", "dflash speculators")
HEADERS = st.sampled_from(["I8", "BOOL", "F64", "F16", [2**62, 2**62], [-1], [], [0, 2**63], [8, 4], 5, None, "x"])
SETTINGS = hypothesis.settings(
    max_examples=10, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that every one of these heads fits."""
    return eagle3_heads.make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module", params=KINDS)
def files(request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Of a sound head, by name."""
    place = tmp_path_factory.mktemp("sound") / "head"
    write: dict[str, Callable[[], Path]] = {
        "eagle": lambda: eagle_heads.write(place, eagle_heads.weights(target / "hf")),
        "eagle3": lambda: eagle3_heads.write(place, eagle3_heads.weights()),
        "eagle3 speculators": lambda: eagle3_heads.write(
            place, eagle3_heads.weights(layer="layers.0"), eagle3_heads.SPECULATORS
        ),
        "medusa": lambda: test_medusa.write(place, test_medusa.weights()),
        "dflash": lambda: dflash_heads.write(place, dflash_heads.weights()),
        "dflash speculators": lambda: dflash_heads.write(
            place, dflash_heads.with_target(dflash_heads.weights(), target / "hf"), dflash_heads.SPECULATORS
        ),
    }
    return {path.name: path.read_bytes() for path in write[request.param]().iterdir()}


@st.composite
def damage(draw: st.DrawFn, files: dict[str, bytes]) -> dict[str, bytes]:
    """The files, one of them damaged: a flipped bit, its end cut off, a strange value, or a strange header."""
    name = draw(st.sampled_from(sorted(files)))
    content, how = files[name], draw(st.sampled_from(["bit", "cut", "value"]))
    if how == "bit":
        at, changed = int(draw(st.floats(0, 1, exclude_max=True)) * min(len(content), 4000)), bytearray(content)
        changed[at] ^= 1 << draw(st.integers(0, 7))
        return {**files, name: bytes(changed)}
    if how == "cut":
        return {**files, name: content[: int(draw(st.floats(0, 1, exclude_max=True)) * len(content))]}
    if name.endswith(".json"):
        values = json.loads(content)
        inner = [value for value in values.values() if isinstance(value, dict)]
        place = draw(st.sampled_from([values, *inner]))
        place[draw(st.sampled_from(sorted(place)))] = draw(STRANGE)
        return {**files, name: json.dumps(values).encode()}
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    tensor = header[draw(st.sampled_from(sorted(header.keys() - {"__metadata__"})))]
    tensor[draw(st.sampled_from(["dtype", "shape", "data_offsets"]))] = draw(HEADERS)
    text = json.dumps(header).encode()
    return {**files, name: struct.pack("<Q", len(text)) + text + content[8 + length :]}


@SETTINGS
@hypothesis.given(data=st.data())
def test_a_damaged_head(data: st.DataObject, files: dict[str, bytes], target: Path, tmp_path: Path):
    source, out = tmp_path / "source", tmp_path / "out" / "head"
    for folder in (source, out.parent):
        folder.mkdir(exist_ok=True)
    for name, content in data.draw(damage(files)).items():
        (source / name).write_bytes(content)
    found = run("head", source, out, "--target", target / "ckpt")
    assert "Traceback" not in found.err
    if found.code == 0:
        config = heads.read_config(out)
        assert run("inspect", out, "--verify").code == 0 and config.model.norm_eps > 0
        run_away(out.parent)
        return
    assert found.code == 2, found.err
    assert found.last.startswith("error: ") and len(found.last) < 1000
    assert list(out.parent.iterdir()) == [], "something was written"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A sound model in Meta's format, in two files."""
    folder = tmp_path_factory.mktemp("meta")
    model = hf_models.make("llama", folder / "hf", num_hidden_layers=1)
    test_meta.write_meta(model, folder / "meta", 2, llama3=True)
    return {path.name: path.read_bytes() for path in (folder / "meta").iterdir()}


@SETTINGS
@hypothesis.given(data=st.data())
def test_damaged_shards(data: st.DataObject, shards: dict[str, bytes], tmp_path: Path):
    source, out = tmp_path / "source", tmp_path / "out" / "ckpt"
    for folder in (source, out.parent):
        folder.mkdir(exist_ok=True)
    changed = dict(shards)
    how, name = data.draw(st.sampled_from(["file", "value", "tensor"])), data.draw(st.sampled_from(sorted(shards)))
    if how == "value":
        values = json.loads(shards["params.json"])
        values[data.draw(st.sampled_from([*sorted(values), "vocab_size", "rope_theta"]))] = data.draw(STRANGE)
        changed["params.json"] = json.dumps(values).encode()
    elif how == "file" or name == "params.json":
        at = int(data.draw(st.floats(0, 1, exclude_max=True)) * len(shards[name]))
        flipped = bytes([shards[name][at] ^ 1 << data.draw(st.integers(0, 7))])
        rest = data.draw(st.sampled_from([b"", flipped + shards[name][at + 1 :]]))
        changed[name] = shards[name][:at] + rest
    for each, content in changed.items():
        (source / each).write_bytes(content)
    if how == "tensor" and name != "params.json":
        _damage_tensor(data, source / name)
    found = run("llama", source, out)
    assert "Traceback" not in found.err
    if found.code == 0:
        run_away(out.parent)
        return
    assert found.code == 2, found.err
    assert found.last.startswith("error: ") and len(found.last) < 1000
    assert list(out.parent.iterdir()) == [], "something was written"


def _damage_tensor(data: st.DataObject, file: Path) -> None:
    """Gives one tensor of a shard another shape or dtype, or leaves it out."""
    state: dict[str, Any] = torch.load(file, weights_only=True)
    name = data.draw(st.sampled_from(sorted(state)))
    made = data.draw(st.sampled_from(["shape", "dtype", "none", "object", "scalar"]))
    if made == "none":
        del state[name]
    else:
        state[name] = {
            "shape": state[name][..., :-1].clone(), "dtype": state[name].int(), "object": "text",
            "scalar": torch.tensor(1.0),
        }[made]  # fmt: skip
    torch.save(state, file)
