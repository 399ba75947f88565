"""Published Medusa heads in and out: against PyTorch, bit for bit, and what is refused."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxspec.checkpoint import loading, parameters
from jaxspec.drafters.medusa import Medusa
from jaxspec.engine.head_weights import restore_head
from tests.convert.commands import HEAD, assert_bitwise, exported, imported, refused, run, tensors
from tests.convert.published_heads import MEDUSA, MEDUSA_HEADS, VOCABULARY, WIDTH, medusa, write


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
    return torch.nn.ModuleList(head() for _ in range(MEDUSA_HEADS))


def test_computes_what_pytorch_does(folder: Path):
    """From PyTorch's own file, whose config says 2 heads as the authors' do, where it holds 3."""
    source, theirs = folder / "published", module()
    source.mkdir()
    (source / "config.json").write_text(json.dumps(MEDUSA))
    state = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}  # as DataParallel names them
    torch.save(state, source / "medusa_lm_head.pt")
    assert imported(folder, source).settings == {"heads": MEDUSA_HEADS}
    ours = restore_head(loading.load(folder / "ckpt", "float32"), Medusa(), folder / HEAD)
    x = np.random.default_rng(0).standard_normal((4, WIDTH)).astype(np.float32)
    with torch.no_grad(), jax.default_matmul_precision("highest"):
        for mine, head in zip(ours.heads, theirs, strict=True):
            np.testing.assert_allclose(mine(jnp.asarray(x))[0], head(torch.from_numpy(x)), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_round_trip(dtype: str, folder: Path):
    found = medusa(dtype)
    config = imported(folder, write(folder / "published", found, MEDUSA, "medusa_lm_head.safetensors"))
    assert (config.dtype, config.source_dtype) == (dtype, dtype)
    written, back, said = exported(folder, "medusa")
    assert_bitwise(written, found)
    assert "Medusa's own code that and the tensors as medusa_lm_head.pt" in said
    assert back == {"medusa_num_heads": MEDUSA_HEADS, "medusa_num_layers": 1, "torch_dtype": dtype}


def test_one_of_two_files(folder: Path):
    source = write(folder / "published", medusa(), MEDUSA, "medusa_lm_head.safetensors")
    (source / "medusa_lm_head.pt").write_bytes(b"")
    said = run("head", source, folder / HEAD, "--target", folder / "ckpt").err
    assert "holds both medusa_lm_head.safetensors and medusa_lm_head.pt; only the first is read" in said


@pytest.mark.parametrize("named", ["LlamaForCausalLM", "MedusaLlamaForCausalLM", "MedusaModelLlama"])
def test_the_model_that_they_are_merged_into(named: str, folder: Path):
    """A folder of Medusa-2: `llama` takes the model from it, and a refusal does not call it a head's."""
    merged = {f"medusa_head.{name}": array for name, array in medusa().items()} | tensors(folder / "hf")
    config = json.loads((folder / "hf" / "config.json").read_text()) | {**MEDUSA, "architectures": [named]}
    source = write(folder / "published", merged, config)
    result = run("llama", source, folder / "out")
    assert result.code == 0 and "holds Medusa heads too" in result.err, result.err
    names = parameters.read_shapes(folder / "ckpt" / "params")
    assert_bitwise(*(parameters.read_arrays(folder / each / "params", names) for each in ("out", "ckpt")))
    (source / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    assert "hidden_act 'gelu' is not supported" in refused(source, folder / "other")
