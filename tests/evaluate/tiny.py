"""A random checkpoint with a byte-level tokenizer, and prompts for it."""

import dataclasses
import json
from pathlib import Path

from flax import nnx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jaxspec.checkpoint import checksums
from jaxspec.checkpoint.config_json import CheckpointConfig, write_config
from jaxspec.checkpoint.parameters import module_to_dict, write_params
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama

MODEL = LlamaConfig(
    vocab_size=256, hidden_size=32, intermediate_size=48, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8,
    max_length=256,
)  # fmt: skip
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def checkpoint(path: Path, num_layers: int = 1) -> Path:
    """Writes one at `path`."""
    path.mkdir()
    model = dataclasses.replace(MODEL, num_layers=num_layers)
    write_config(path, CheckpointConfig("llama", model, "float32", "float32", "jaxspec"))
    write_params(path / "params", module_to_dict(Llama(model, rngs=nnx.Rngs(0))).items())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(path)
    checksums.write(path)
    return path


def prompts(path: Path, questions: list[dict]) -> Path:
    """Writes a prompt file at `path`."""
    path.write_text("".join(json.dumps(question) + "\n" for question in questions), encoding="utf-8")
    return path
