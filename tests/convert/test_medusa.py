"""Published Medusa heads in and out: against PyTorch, bit for bit, and what is refused."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from jaxspec.checkpoint import heads, loading
from jaxspec.convert import llama
from jaxspec.drafters.medusa import Medusa
from jaxspec.engine.head_weights import restore_head
from tests import hf_models
from tests.convert.commands import assert_bitwise, refused, run, tensors

WIDTH, VOCABULARY, COUNT = 32, 96, 3  # the widths of the targets in `tests.hf_models`
CONFIG = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "org/model"}
OUT = Path("ckpt", "heads", "medusa")


class Block(torch.nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.silu(self.linear(x))


def module() -> torch.nn.ModuleList:
    """The heads as PyTorch has them, whose own names and shapes are those of the format."""
    torch.manual_seed(0)
    head = lambda: torch.nn.Sequential(Block(), torch.nn.Linear(WIDTH, VOCABULARY, bias=False))
    return torch.nn.ModuleList(head() for _ in range(COUNT))


def weights(dtype: str = "float32") -> dict[str, np.ndarray]:
    return {name: tensor.numpy().astype(np.dtype(dtype)) for name, tensor in module().state_dict().items()}


def write(folder: Path, found: dict[str, np.ndarray], file: str = "medusa_lm_head.safetensors", **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(found, folder / file)
    return folder


def imported(folder: Path, source: Path, *args: object) -> heads.HeadConfig:
    result = run("head", source, folder / OUT, "--target", folder / "ckpt", *args)
    assert result.code == 0, result.err
    return heads.read_head(folder / OUT, "medusa")


def exported(folder: Path) -> dict[str, np.ndarray]:
    result = run("export", folder / OUT, folder / "back", "--format", "medusa")
    assert result.code == 0, result.err
    assert {path.name for path in (folder / "back").iterdir()} == {"config.json", "medusa_lm_head.safetensors"}
    return tensors(folder / "back")


def test_computes_what_pytorch_does(folder: Path):
    """From PyTorch's own file, whose config says 2 heads as the authors' do, where it holds 3."""
    source, theirs = folder / "published", module()
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    torch.save(theirs.state_dict(), source / "medusa_lm_head.pt")
    assert imported(folder, source).settings == {"heads": COUNT}
    ours = restore_head(loading.load(folder / "ckpt", "float32"), Medusa(), folder / OUT)
    x = np.random.default_rng(0).standard_normal((4, WIDTH)).astype(np.float32)
    with torch.no_grad(), jax.default_matmul_precision("highest"):
        for mine, head in zip(ours.heads, theirs, strict=True):
            np.testing.assert_allclose(mine(jnp.asarray(x))[0], head(torch.from_numpy(x)), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_round_trip(dtype: str, folder: Path):
    found = weights(dtype)
    config = imported(folder, write(folder / "published", found))
    assert (config.dtype, config.source_dtype) == (dtype, dtype)
    assert_bitwise(exported(folder), found)
    back = json.loads((folder / "back/config.json").read_text())
    assert back == {"medusa_num_heads": COUNT, "medusa_num_layers": 1, "torch_dtype": dtype}


def test_wider_dtype_comes_back_bitwise(folder: Path):
    found = weights(ml_dtypes.bfloat16.__name__)
    config = imported(folder, write(folder / "published", found), "--dtype", "float32")
    assert (config.dtype, config.source_dtype) == ("float32", "bfloat16")
    assert_bitwise(exported(folder), found)


def test_merged_into_their_model(folder: Path):
    """The heads alone are taken from a file that holds the target too."""
    found = weights()
    merged = {f"medusa_head.{name}": array for name, array in found.items()} | tensors(folder / "hf")
    imported(folder, write(folder / "published", merged, "model.safetensors"))
    assert_bitwise(exported(folder), found)


def test_inspect(folder: Path):
    lines = lambda path: dict(line.strip().split(": ", 1) for line in run("inspect", path).out.splitlines())
    source = write(folder / "published", weights("float16"))
    published = lines(source)
    assert (published["format"], published["heads"], published["2.0.linear.bias"]) == ("Medusa heads", "3", "[32]")
    imported(folder, source)
    ours = lines(folder / OUT)
    assert ours["format"] == "jaxspec head for the drafter medusa, exported in float16"
    assert ours["heads.2.head.kernel"] == "[32, 96]"
    assert "layers" not in ours
    for key in ("heads", "hidden size", "vocabulary", "parameters"):
        assert ours[key] == published[key]


def refuse(folder: Path, source: Path) -> str:
    """The sentence with which heads are refused, after checking that they left no trace."""
    return refused(source, folder / "out", "--target", folder / "ckpt", command="head")


@pytest.mark.parametrize(
    ("changed", "config", "words"),
    [
        ({"1.0.linear.weight": None, "1.0.linear.bias": None, "1.1.weight": None}, {}, ["1.0.linear.bias", "missing"]),
        ({"0.1.weight": None}, {}, ["0.1.weight", "is missing"]),
        ({f"{i}.1.weight": None for i in range(COUNT)}, {}, ["only residual blocks", "share the target's LM head"]),
        ({"2.1.weight": np.ones((5, WIDTH), np.float32)}, {}, ["2.1.weight", "[5, 32]", "[96, 32]"]),
        ({"0.1.bias": np.ones(VOCABULARY, np.float32)}, {}, ["0.1.bias", "is not part of this model"]),
        ({"0.0.linear.bias": np.full(WIDTH, np.nan, np.float32)}, {}, ["0.0.linear.bias", "NaN"]),
        ({"0.0.linear.bias": np.ones(WIDTH, np.int8)}, {}, ["0.0.linear.bias", "I8"]),
        ({"0.1.linear.weight": np.ones((WIDTH, WIDTH), np.float32)}, {}, ["several residual blocks"]),
        ({}, {"medusa_num_heads": 5}, ["medusa_num_heads 5", "the files hold 3"]),
        ({}, {"medusa_num_heads": "five"}, ["medusa_num_heads five", "the files hold 3"]),
        (dict.fromkeys(weights()) | {"x": np.ones(1, np.float32)}, {}, ["the files hold 0"]),
    ],
)
def test_tensors_and_configs(changed: dict, config: dict, words: list[str], folder: Path):
    found = {name: array for name, array in (weights() | changed).items() if array is not None}
    sentence = refuse(folder, write(folder / "published", found, **config))
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("vocab_size", 97, "a target with a vocabulary of 96, and this target's is 97"),
        ("hidden_size", 64, "a target with a hidden size of 32, and this target's is 64"),
    ],
)
def test_heads_of_another_target(setting: str, value: int, words: str, folder: Path):
    overrides: dict[str, Any] = {setting: value}
    hf_models.make("llama", folder / "other-hf", num_hidden_layers=1, **overrides)
    llama.convert(folder / "other-hf", folder / "other")
    source = write(folder / "published", weights())
    assert words in refused(source, folder / "out", "--target", folder / "other", command="head")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((OUT, "back"), "eagle, eagle3, dflash, speculators or medusa writes"),
        ((OUT, "back", "--format", "eagle"), "is for the drafter medusa, and not for eagle"),
        ((OUT, "back", "--format", "medusa", "--target", "ckpt"), "so it needs --format eagle"),
        (("ckpt", "back", "--format", "medusa"), "is a checkpoint, which --format hf writes; --format medusa takes"),
    ],
)
def test_wrong_pairings_of_export(arguments: tuple, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    imported(folder, write(folder / "published", weights()))
    monkeypatch.chdir(folder)
    result = run("export", *arguments)
    assert (result.code, words in result.last) == (2, True), result.err
    assert not (folder / "back").exists()
