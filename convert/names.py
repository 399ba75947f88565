"""The name of each parameter in Hugging Face's and in Meta's files: one table, used in both directions.

PyTorch's linear weights are [out, in], and kernels here are [in, out]. So the file holds the transpose of each kernel.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from jaxspec.checkpoint.config_json import CheckpointError


@dataclasses.dataclass(frozen=True)
class Row:
    """One module of the model. Names in files are without `.weight` and `.bias`."""

    ours: str  # jaxspec's dotted name; `{}` is the number of the layer
    huggingface: str
    meta: str | None  # None: the format has no such module
    join: Literal[0, 1] | None  # axis along which Meta's shards are joined; None: each shard holds the whole tensor


TABLE = (
    Row("embedding", "model.embed_tokens", "tok_embeddings", 0),  # dimension 1 in LLaMA 1 and 2: see meta.py
    Row("layers.{}.attention_norm", "model.layers.{}.input_layernorm", "layers.{}.attention_norm", None),
    Row("layers.{}.attention.q", "model.layers.{}.self_attn.q_proj", "layers.{}.attention.wq", 0),
    Row("layers.{}.attention.k", "model.layers.{}.self_attn.k_proj", "layers.{}.attention.wk", 0),
    Row("layers.{}.attention.v", "model.layers.{}.self_attn.v_proj", "layers.{}.attention.wv", 0),
    Row("layers.{}.attention.o", "model.layers.{}.self_attn.o_proj", "layers.{}.attention.wo", 1),
    Row("layers.{}.attention.q_norm", "model.layers.{}.self_attn.q_norm", None, None),
    Row("layers.{}.attention.k_norm", "model.layers.{}.self_attn.k_norm", None, None),
    Row("layers.{}.mlp_norm", "model.layers.{}.post_attention_layernorm", "layers.{}.ffn_norm", None),
    Row("layers.{}.mlp.gate", "model.layers.{}.mlp.gate_proj", "layers.{}.feed_forward.w1", 0),
    Row("layers.{}.mlp.up", "model.layers.{}.mlp.up_proj", "layers.{}.feed_forward.w3", 0),
    Row("layers.{}.mlp.down", "model.layers.{}.mlp.down_proj", "layers.{}.feed_forward.w2", 1),
    Row("layers.{}.mlp.router", "model.layers.{}.block_sparse_moe.gate", None, None),
    # The files have one tensor per expert, `experts.0.w1`. `transfer.join_experts` stacks them under the name here.
    Row("layers.{}.mlp.experts.gate", "model.layers.{}.block_sparse_moe.experts.w1", None, None),
    Row("layers.{}.mlp.experts.up", "model.layers.{}.block_sparse_moe.experts.w3", None, None),
    Row("layers.{}.mlp.experts.down", "model.layers.{}.block_sparse_moe.experts.w2", None, None),
    Row("norm", "model.norm", "norm", None),
    Row("head", "lm_head", "output", 0),
)
_BY_OURS = {row.ours: row for row in TABLE}
_BY_META = {row.meta: row for row in TABLE if row.meta is not None}

# Tables of rotary angles, which some files contain although they follow from the config.
IGNORED = re.compile(r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)|(.*\.)?rope\.freqs")
# Parts of names from modules that only wrap another: of torch.compile, DataParallel, FSDP and checkpointing.
_WRAPPER = re.compile(r"(?<![^.])(_orig_mod|module|_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module)\.")
MEDUSA = "medusa_head."
"""Prefix of the names of Medusa heads whose files hold their model too."""
Value = TypeVar("Value")


def _split(name: str) -> tuple[str, str]:
    """layers.7.norm → layers.{}.norm, 7. The number is empty if the name has none."""
    number = re.search(r"(?<=layers\.)\d+", name)
    return (name, "") if number is None else (name.replace(f"layers.{number[0]}.", "layers.{}."), number[0])


def theirs(ours: str, in_meta: bool = False) -> str:
    """A parameter's name in Hugging Face's or Meta's files: `layers.0.norm` → `model.layers.0.norm.weight`."""
    module, layer = _split(ours.removesuffix(".kernel").removesuffix(".bias"))
    row, suffix = _BY_OURS[module], "bias" if ours.endswith(".bias") else "weight"
    name = row.meta if in_meta and row.meta is not None else row.huggingface
    return f"{name.format(layer)}.{suffix}"


def is_kernel(ours: str) -> bool:
    """Whether the file holds the transpose of a jaxspec parameter."""
    return ours.endswith(".kernel")


def turned(ours: str, array: np.ndarray) -> np.ndarray:
    """A parameter in the file's layout, or back: kernels (also stacked ones) are transposed."""
    return array.swapaxes(-1, -2) if is_kernel(ours) else array


def meta_row(name: str) -> Row | None:
    """The table's row for a tensor of Meta's files; None for an unknown tensor."""
    return _BY_META.get(_split(name.removesuffix(".weight"))[0])


def unprefixed(tensors: Mapping[str, Value], source: Path, known: Collection[str]) -> dict[str, Value]:
    """A source's tensors, without tables of rotary angles, and without what tools add to names, such as `module.`.

    The text before one of the `known` names is the prefix. Raises CheckpointError for a tensor with and without it.
    """
    unwrapped = {name: _WRAPPER.sub("", name) for name in tensors}
    ends = tuple(f".{name}" for name in known)
    whole = next((name for name in unwrapped.values() if name.endswith(ends) and name not in known), "")
    prefix = next((whole.removesuffix(name) for name in known if whole.endswith(f".{name}")), "")
    by_name = {}
    for name, tensor in tensors.items():
        if IGNORED.fullmatch(name):
            continue
        if (bare := unwrapped[name].removeprefix(prefix)) in by_name:
            more = prefix or name.removesuffix(bare)
            raise CheckpointError(f"tensor {bare} is twice in {source}, with and without the prefix {more}")
        by_name[bare] = tensor
    return by_name
