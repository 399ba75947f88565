"""The shape of a target to simulate."""

import dataclasses
import json
from pathlib import Path

import pytest

from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError, write_config
from jaxspec.commands.bench import read_shape
from tests.evaluate import tiny

SHAPE = dataclasses.replace(tiny.MODEL, num_layers=2, max_length=1024)


def test_a_shape_is_read_from_either_config(tmp_path: Path):
    file = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read: No such file"):
        read_shape(tmp_path)
    theirs = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48}
    file.write_text(json.dumps({**theirs, "num_hidden_layers": 3, "num_attention_heads": 4}))
    assert read_shape(tmp_path).model.num_layers == read_shape(file).model.num_layers == 3
    write_config(tmp_path, CheckpointConfig("llama", SHAPE, "float32", "float32", "jaxspec"))
    named = file.rename(tmp_path / "other.json")
    assert read_shape(named).model == SHAPE  # and no config.json beside it is looked for
    file.write_text("{")
    with pytest.raises(CheckpointError, match="is not valid JSON"):
        read_shape(file)
