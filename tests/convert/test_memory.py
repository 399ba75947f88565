"""Peak memory of a conversion, measured in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

HIDDEN, MLP, VOCABULARY, LAYERS = 1024, 2816, 4096, 6

CONVERT = """
import sys
from pathlib import Path
import orbax.checkpoint.experimental.v1, safetensors.numpy
from jaxspec.convert import llama
def peak():  # not getrusage: that counts what the parent held when it forked
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
before = peak()
llama.convert(Path(sys.argv[1]), Path(sys.argv[2]))
print(peak() - before)
"""


def write_model(path: Path) -> int:
    """A sharded float32 model, a layer a file; returns its bytes."""
    noise = np.random.default_rng(0).standard_normal(MLP * HIDDEN, dtype=np.float32)
    block = lambda *shape: np.resize(noise, shape)
    files = [{"model.embed_tokens.weight": block(VOCABULARY, HIDDEN), "model.norm.weight": block(HIDDEN)}]
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        tensors = {f"{layer}self_attn.{part}_proj.weight": block(HIDDEN, HIDDEN) for part in "qkvo"}
        tensors |= {f"{layer}mlp.{part}_proj.weight": block(MLP, HIDDEN) for part in ("gate", "up")}
        tensors |= {f"{layer}mlp.down_proj.weight": block(HIDDEN, MLP)}
        files.append(tensors | {f"{layer}{n}_layernorm.weight": block(HIDDEN) for n in ("input", "post_attention")})
    path.mkdir()
    weight_map = {}
    for i, tensors in enumerate(files):
        save_file(tensors, path / f"{i}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"{i}.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": MLP,
        "num_hidden_layers": LAYERS, "num_attention_heads": 16, "tie_word_embeddings": True,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return sum(array.nbytes for tensors in files for array in tensors.values())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_peak_stays_far_below_the_model(tmp_path: Path):
    size = write_model(tmp_path / "hf")
    assert size > 320e6
    # glibc keeps freed blocks of a few megabytes for itself; here they go back, as larger ones always do.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", CONVERT, str(tmp_path / "hf"), str(tmp_path / "ckpt")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    growth = int(done.stdout)
    assert 10e6 < growth < 0.6 * size, f"{growth / 1e6:.0f} MB for a model of {size / 1e6:.0f} MB"
