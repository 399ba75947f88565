"""Heads cut to a draft vocabulary: the columns that they keep, the source of these columns, and refusals."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxspec.checkpoint import config_json, heads, loading, parameters
from jaxspec.checkpoint.builtin import FOLDER as BUILTIN
from jaxspec.checkpoint.checksums import verify
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.controllers.cali_ts import FOLDER as PREDICTOR
from jaxspec.convert import draft_cut, llama
from jaxspec.convert.inspect import describe
from jaxspec.decoding.drafter import Drafter, HeadShape
from jaxspec.drafters import DRAFTERS, Eagle, Eagle3
from jaxspec.drafters.draft_vocabulary import ids_of
from jaxspec.engine.head_weights import drafter_of, restore_head
from jaxspec.host.buckets import to_path
from jaxspec.model.quantization import dense
from tests import hf_models
from tests.bucket import NAME, Bucket
from tests.checkpoints import byte_tokenizer
from tests.convert.commands import refused, run

IDS = [1500, 3, 77, 2000, 78, 640, 641]
KEPT = sorted([*IDS, 1])  # 1 ends a text
LM_HEADS = {
    "early-exit": ["head.kernel"],
    "edd": ["decoder.head.kernel"],
    "medusa": [f"heads.{i}.head.kernel" for i in range(5)],
    "vdm": ["head.kernel"],
}


@pytest.fixture(scope="module")
def builtin() -> loading.Checkpoint:
    return loading.load("builtin")


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    (tmp_path / "ids.json").write_text(json.dumps(IDS))
    return tmp_path / "ids.json"


def read(path: Path) -> dict[str, np.ndarray]:
    names = parameters.read_shapes(path / "params")
    return parameters.read_arrays(path / "params", names)


def made(drafter: Drafter, shape: HeadShape, folder: Path) -> Path:
    """Writes a head whose weights are 0."""
    folder.mkdir(parents=True)
    abstract = nnx.eval_shape(lambda: drafter.build_head(shape, nnx.Rngs(0)))
    width = shape.model.hidden_size
    config = heads.HeadConfig(drafter.name, shape.model, "float32", "float32", dict(shape.settings), target_width=width)
    heads.write_head(folder, config, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), abstract))
    return folder


def cut(source: str | Path, out: Path, ids: Path, target: str | Path = "builtin") -> Path:
    result = run("head", source, out, "--target", target, "--draft-ids", ids)
    assert result.code == 0, result.err
    return out


@pytest.mark.parametrize("name", ["eagle", "layer-skip", *LM_HEADS])
def test_columns_are_kept_and_the_rest_is_as_it_was(name: str, builtin: loading.Checkpoint, ids: Path, tmp_path: Path):
    out = cut(f"builtin/heads/{name}", tmp_path / name, ids)
    config, found = heads.read_config(out), read(out)
    assert ids_of(config.settings["draft_vocabulary"], 2048).tolist() == KEPT
    whole = {} if name == "layer-skip" else read(BUILTIN / "heads" / name)
    if name in LM_HEADS:
        expected = {key: array[:, KEPT] if key in LM_HEADS[name] else array for key, array in whole.items()}
    else:
        expected = {**whole, "head.kernel": read(BUILTIN)["head.kernel"][:, KEPT]}
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert (found[key].dtype, found[key].tobytes()) == (array.dtype, array.tobytes()), key
    assert verify(out) > 0

    head = restore_head(builtin, drafter_of(BUILTIN, str(out)), out)
    assert {key: array.shape for key, array in module_to_dict(head).items()} == {k: a.shape for k, a in found.items()}
    assert "8 of 2048" in run("inspect", out).out
    assert (out / PREDICTOR).is_dir() == (BUILTIN / "heads" / name / PREDICTOR).is_dir()


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_tied_draft_model_reads_with_columns_of_its_embedding(quantize: str | None, tmp_path: Path):
    hf_models.make("llama-tied", tmp_path / "hf")
    llama.convert(tmp_path / "hf", tmp_path / "draft", quantize=quantize)
    llama.convert(tmp_path / "hf", tmp_path / "ckpt")
    (tmp_path / "ids.txt").write_text("5 90\n7")
    out = cut(tmp_path / "draft", tmp_path / "ckpt" / "heads" / "small", tmp_path / "ids.txt", tmp_path / "ckpt")
    columns = read(tmp_path / "draft")["embedding"].T[:, [2, 5, 7, 90]]
    model = loading.load(tmp_path / "ckpt", "float32")
    head = restore_head(model, DRAFTERS["draft-model"](), out)
    found = dense(module_to_dict(head), ["head.kernel"])["head.kernel"]
    np.testing.assert_allclose(found, columns, atol=0 if quantize is None else np.abs(columns).max() / 127)
    assert ("head.kernel.values" in module_to_dict(head)) == (quantize is not None)


@pytest.mark.parametrize("rows", [260, 270])
def test_a_draft_model_that_is_padded_otherwise(rows: int, tmp_path: Path):
    for name, size in (("target", 264), ("draft", rows)):
        hf_models.make("llama", tmp_path / name, vocab_size=size, num_hidden_layers=1)
        byte_tokenizer().save_pretrained(tmp_path / name)
    llama.convert(tmp_path / "target", tmp_path / "ckpt")
    llama.convert(tmp_path / "draft", tmp_path / "ckpt" / "heads" / "draft-model")
    (tmp_path / "ids.txt").write_text("5 90 259")
    draft = tmp_path / "ckpt" / "heads" / "draft-model"
    out = cut(draft, tmp_path / "ckpt" / "heads" / "small", tmp_path / "ids.txt", tmp_path / "ckpt")
    head = restore_head(loading.load(tmp_path / "ckpt", "float32"), DRAFTERS["draft-model"](), out)
    found, whole = module_to_dict(head), read(draft)
    np.testing.assert_array_equal(found["head.kernel"], whole["head.kernel"][:, [2, 5, 90, 259]])
    np.testing.assert_array_equal(found["embedding"][: min(rows, 264)], whole["embedding"][:264])
    assert found["embedding"].shape[0] == 264
    (tmp_path / "ids.txt").write_text("5 263")
    if rows == 260:
        words = ["--target", tmp_path / "ckpt", "--draft-ids", tmp_path / "ids.txt"]
        assert "token 263, and the draft model has no such" in refused(draft, tmp_path / "x", *words, command="head")


def test_an_embedding_of_its_own_is_no_lm_head(builtin: loading.Checkpoint, ids: Path, tmp_path: Path):
    shape = Eagle().head_for(builtin.config.model)
    shape = dataclasses.replace(shape, settings={**shape.settings, "own_embedding": True})
    found = read(out := cut(made(Eagle(), shape, tmp_path / "eagle"), tmp_path / "out", ids))
    assert heads.read_config(out).target_width == shape.model.hidden_size
    np.testing.assert_array_equal(found["head.kernel"], read(BUILTIN)["head.kernel"][:, KEPT])


def test_a_quantised_target_gives_its_columns(ids: Path, tmp_path: Path):
    hf_models.make("llama", tmp_path / "hf")
    llama.convert(tmp_path / "hf", tmp_path / "ckpt", quantize="int8")
    shape = Eagle().head_for(config_json.read_config(tmp_path / "ckpt").model)
    head = made(Eagle(), shape, tmp_path / "ckpt" / "heads" / "eagle")
    ids.write_text("[9, 4]")
    out = cut(head, tmp_path / "out", ids, tmp_path / "ckpt")
    stored = {name: jnp.asarray(array) for name, array in read(tmp_path / "ckpt").items()}
    expected = dense(stored, ["head.kernel"])["head.kernel"][:, [2, 4, 9]]
    np.testing.assert_array_equal(read(out)["head.kernel"], expected)


@pytest.mark.parametrize("form", ["[8, 5]", "8\n5\n", "list.pt", "tensor.pt"])
def test_ids_come_from_lists_of_several_kinds(form: str, tmp_path: Path):
    file = tmp_path / (form if form.endswith(".pt") else "ids.txt")
    if form.endswith(".pt"):
        torch.save([8, 5] if form == "list.pt" else torch.tensor([8, 5]), file)
    else:
        file.write_text(form)
    out = cut("builtin/heads/layer-skip", tmp_path / "out", file)
    assert ids_of(heads.read_config(out).settings["draft_vocabulary"], 2048).tolist() == [1, 5, 8]


def test_the_most_frequent_tokens_of_a_text(builtin: loading.Checkpoint, tmp_path: Path):
    (tmp_path / "text.txt").write_text("import os\n" * 50 + "def f(x):\n    return x\n")
    words = ["--target", "builtin", "--draft-vocab", 4, "--data", tmp_path / "text.txt"]
    result = run("head", "builtin/heads/layer-skip", tmp_path / "out", *words)
    assert result.code == 0, result.err
    found = ids_of(heads.read_config(tmp_path / "out").settings["draft_vocabulary"], 2048).tolist()
    assert {*builtin.tokenizer.encode("import os\n")} - {0} <= {*found}
    assert len(found) == 4 and 1 in found


def test_ids_in_a_bucket(in_bucket: Bucket, tmp_path: Path):
    torch.save(torch.tensor([8, 5]), tmp_path / "ids.pt")
    file = to_path(f"gs://{NAME}/ids.pt")
    file.write_bytes((tmp_path / "ids.pt").read_bytes())
    assert draft_cut.read_ids(file) == [8, 5]
    with pytest.raises(CheckpointError, match=r"other\.pt cannot be read: there is no such object"):
        draft_cut.read_ids(file.with_name("other.pt"))


@pytest.mark.parametrize("text", ["[8, 5]", "8 5\n", "8\r\n5"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])  # editors on Windows write it
def test_ids_with_a_mark_of_byte_order(mark: str, text: str, tmp_path: Path):
    (tmp_path / "ids").write_text(mark + text, encoding="utf-8")
    assert draft_cut.read_ids(tmp_path / "ids") == [8, 5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1.5]", "give one or more whole numbers"),
        ("{}", "no list of token ids"),
        ("[10000000000]", "no list of token ids"),
        ("[-10000000000]", "no list of token ids"),
        ("[" * 100_000, "no list of token ids"),
        ("one two", "no list of token ids"),
        ("[]", "one or more"),
        ("[3, 2048]", "token 2048"),
        (json.dumps(list(range(2048))), "whole vocabulary"),
    ],
)
def test_ids_that_are_none_are_refused(text: str, words: str, ids: Path, tmp_path: Path):
    ids.write_text(text)
    said = refused(
        Path("builtin/heads/edd"), tmp_path / "out", "--target", "builtin", "--draft-ids", ids, command="head"
    )
    assert words in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--draft-vocab", 8], "go together"),
        (["--data", "stdlib"], "one of the two"),
        (["--draft-vocab", 8, "--data", "stdlib", "--draft-ids", "x.json"], "one of the two"),
        (["--draft-ids", "x.json", "--taps", "1"], "--taps is for converting"),
        (["--draft-ids", "no.json"], "no.json cannot be read"),
        (["--draft-vocab", 0, "--data", "stdlib"], "at least 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list, words: str, tmp_path: Path):
    said = refused(Path("builtin/heads/edd"), tmp_path / "out", "--target", "builtin", *options, command="head")
    assert words in said


def test_a_published_head_is_to_be_converted_first(tmp_path: Path, ids: Path):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "config.json").write_text("{}")
    words = ["--target", "builtin", "--draft-ids", ids]
    assert "convert it first" in refused(tmp_path / "published", tmp_path / "out", *words, command="head")


def test_a_cut_head_is_neither_cut_again_nor_exported(tmp_path: Path, ids: Path):
    out, again = cut("builtin/heads/eagle", tmp_path / "eagle", ids), tmp_path / "again"
    said = refused(out, again, "--target", "builtin", "--draft-ids", ids, command="head")
    assert "already has a draft vocabulary; cut one that has none" in said
    said = refused(out, again, "--format", "eagle", "--target", "builtin", command="export")
    assert "was cut to a draft vocabulary, which --format eagle cannot describe; export another head" in said


def test_an_eagle3_head_keeps_the_vocabulary_that_it_has(tmp_path: Path, ids: Path, builtin: loading.Checkpoint):
    shape = Eagle3().head_for(builtin.config.model, ids=range(100))
    head, words = made(Eagle3(), shape, tmp_path / "eagle3"), ["--target", "builtin", "--draft-ids", ids]
    assert "already" in refused(head, tmp_path / "out", *words, command="head")


@pytest.mark.parametrize("mask", ["ff", 7, ["ff"], "zz" * 256])
def test_a_damaged_mask_is_refused(mask: object, builtin: loading.Checkpoint, tmp_path: Path):
    folder = shutil.copytree(BUILTIN / "heads" / "edd", tmp_path / "edd")
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["draft_vocabulary"] = mask
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(loading.CheckpointError, match="has a draft_vocabulary"):
        restore_head(builtin, DRAFTERS["edd"](), folder)
    with pytest.raises(loading.CheckpointError, match=f"the head at {folder} has a draft_vocabulary"):
        describe(folder)
