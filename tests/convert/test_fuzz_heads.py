"""Published heads and Meta's shards from strangers: conversion ends in one sentence, or in a head that is sound."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from tests import hf_models
from tests.convert import test_meta
from tests.convert.published_heads import KINDS, write
from tests.convert.test_fuzz import STRANGE, ends_well

HEADERS = st.sampled_from(["I8", "BOOL", "F64", "F16", [2**62, 2**62], [-1], [], [0, 2**63], [8, 4], 5, None, "x"])
SETTINGS = hypothesis.settings(
    max_examples=10, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.fixture(scope="module", params=KINDS)
def files(request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Of a sound head, by name."""
    place = write(tmp_path_factory.mktemp("sound") / "head", *KINDS[request.param](target / "hf"))
    return {path.name: path.read_bytes() for path in place.iterdir()}


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
    ends_well(tmp_path, data.draw(damage(files)), "head", "--target", target / "ckpt")


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
    if how == "tensor" and name != "params.json":
        changed[name] = _with_damaged_tensor(data, shards[name])
    ends_well(tmp_path, changed, "llama")


def _with_damaged_tensor(data: st.DataObject, shard: bytes) -> bytes:
    """The shard, one of whose tensors has another shape or dtype, or is left out."""
    state: dict[str, Any] = torch.load(io.BytesIO(shard), weights_only=True)
    name = data.draw(st.sampled_from(sorted(state)))
    made = data.draw(st.sampled_from(["shape", "dtype", "none", "object", "scalar"]))
    if made == "none":
        del state[name]
    else:
        state[name] = {
            "shape": state[name][..., :-1].clone(), "dtype": state[name].int(), "object": "text",
            "scalar": torch.tensor(1.0),
        }[made]  # fmt: skip
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()
