"""Conversion of DFlash heads between their published layouts and jaxspec's, bit for bit in both directions.

The files of DFlash's authors contain neither embedding nor LM head, which are the target's. The files of speculators
and vLLM contain both, and sometimes a draft vocabulary. jaxspec drops tensors that equal the target's.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flax import nnx

from jaxspec.checkpoint import config_json, heads
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import dflash_config, draft_maps, fused_heads, head_keys
from jaxspec.convert.dflash_config import LAYOUTS, Layout
from jaxspec.convert.head_parts import Taps, lm_head_of, without_targets
from jaxspec.convert.names import theirs, unprefixed
from jaxspec.convert.readers import Tensor, check_dtypes, open_directory
from jaxspec.convert.transfer import main_dtype, match
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.dflash import Dflash, official_taps
from jaxspec.model.config import LlamaConfig

_OURS = {"fc.kernel": "fc.weight", "context_norm": "hidden_norm.weight", **{name: name for name in draft_maps.NAMES}}


@dataclasses.dataclass(frozen=True)
class PublishedHead:
    """A published head: its config, and the source tensor of each of jaxspec's parameters.

    Attributes:
        layout: the project whose layout it has.
        model: shape of its layers.
        taps: the layers whose inputs it reads.
        settings: fields of `DflashOptions`, without the taps.
        target_layers: number of layers of its target; None: not in the config.
        tensors: source tensors by jaxspec's names.
    """

    layout: Layout
    model: LlamaConfig
    taps: Taps
    settings: dict[str, Any]
    target_layers: int | None
    tensors: dict[str, Tensor]

    def layers_read(self, target_layers: int) -> tuple[int, ...]:
        """The taps, for a target with this number of layers."""
        return self.taps.layers or official_taps(target_layers, self.model.num_layers)


def published(ours: str) -> str:
    """Published name of a jaxspec parameter: `layers.0.mlp.up.kernel` → `layers.0.mlp.up_proj.weight`."""
    return _OURS.get(ours) or theirs(ours, "huggingface").removeprefix("model.")


def abstract(model: LlamaConfig, settings: dict[str, Any]) -> nnx.Module:
    """A head of this shape, without arrays."""
    return nnx.eval_shape(lambda: Dflash().build_head(HeadShape(model, settings), nnx.Rngs(0)))


def plan(source: Path, taps: Sequence[int] | None = None) -> PublishedHead:
    """A published head, read and checked; see `fused_heads`.

    Args:
        taps: the layers whose inputs it reads; None: those in the config, by the convention of its layout.
    """
    raw = head_keys.read(source, "dflash")
    model, read_taps = dflash_config.model(raw, source), dflash_config.taps(raw, source, taps)
    settings: dict[str, Any] = dflash_config.block(raw, source)
    found = unprefixed(open_directory(source), source, ["layers.0.self_attn.q_proj.weight"])
    maps = {name: found.pop(name) for name in draft_maps.NAMES if name in found}
    check_dtypes(found)
    drafted, said = found.get("lm_head.weight"), raw.get("draft_vocab_size")
    rows = model.vocab_size if drafted is None else drafted.shape[0]
    if said not in (None, rows):
        held = "tensor lm_head.weight is missing" if drafted is None else f"lm_head.weight has {rows} rows"
        raise CheckpointError(f"{source / 'config.json'} says draft_vocab_size {said}, and {held} in {source}")
    settings |= {
        "draft_vocabulary": draft_maps.read(maps, rows, model.vocab_size, str(source)),
        "own_embedding": "embed_tokens.weight" in found,
        "own_head": drafted is not None,
    }
    # Without a list, there is one for each layer of the head.
    count = fused_heads.count_read(found, read_taps, model.num_layers, model.hidden_size, source)
    layers = raw.get("num_target_layers")
    try:
        module = abstract(model, {**settings, "taps": (0,) * count})
    except ValueError as error:
        raise CheckpointError(f"{source / 'config.json'}: {error}") from error
    tensors = match(module, found, published, str(source))
    return PublishedHead(dflash_config.layout_of(raw), model, read_taps, settings, layers, tensors)


def convert(
    source: Path, out: Path, target: Path, dtype: str | None = None, taps: Sequence[int] | None = None
) -> heads.HeadConfig:
    """Converts a published head into the head `out`, and reports its layout and taps.

    Args:
        source: folder of the head.
        out: folder to make; must not exist.
        target: the checkpoint that the head was trained for.
        dtype: dtype of every parameter; None keeps each tensor's own.
        taps: as in `plan`.

    Raises:
        CheckpointError: the source is invalid or for another target; nothing is left at `out`.
        ValueError: `out` exists.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    planned, goal = plan(source, taps), config_json.read_config(target)
    heads.check_same_shape(source, planned.model, goal.model)
    fused_heads.check_depth(planned.target_layers, goal.model, source)
    layers = planned.layers_read(goal.model.num_layers)
    if goal.model.num_layers in layers:
        raise CheckpointError(
            f"the head at {source} reads the output of the target's last layer; projects disagree whether that is "
            "before or after the final norm, so jaxspec does not support it"
        )
    source_dtype = main_dtype(planned.tensors.values())
    tensors, embedding = without_targets(planned.tensors, "embedding", "embedding", source_dtype, target, source)
    tensors, lm_head = without_targets(tensors, "head.kernel", lm_head_of(goal), source_dtype, target, source)
    settings = {"taps": list(layers), **planned.settings, "own_embedding": embedding, "own_head": lm_head}
    config = heads.HeadConfig(Dflash.name, planned.model, dtype or source_dtype, source_dtype, settings)
    said = LAYOUTS[planned.layout], planned.taps.reason
    return fused_heads.write(Dflash(), "DFlash head", config, tensors, source, out, goal.model, dtype, said)
