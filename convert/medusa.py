"""Conversion of Medusa heads between their published format and jaxspec's, bit for bit in both directions.

Their files contain no tensors of the target. The number of heads is counted, because published configs say 2 where the
files hold 5.
"""

import dataclasses
import re
from pathlib import Path

from flax import nnx

from jaxspec.checkpoint import config_json, heads
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import head_kinds, readers
from jaxspec.convert.head_parts import head_arrays, head_config
from jaxspec.convert.readers import Source, Tensor
from jaxspec.convert.transfer import main_dtype, match, write_head, write_published
from jaxspec.drafters.medusa import Medusa, MedusaHeads
from jaxspec.host.terminal import say

_MERGED = "medusa_head."  # prefix of names if the heads and their target share files
_BLOCK = re.compile(r"\d+\.\d+\.linear\.(weight|bias)")
_SECOND_BLOCK = re.compile(r"\d+\.[1-9]\d*\.linear\..*")


@dataclasses.dataclass(frozen=True)
class PublishedHeads:
    """Published heads: the source tensor of each of jaxspec's parameters, and the heads' sizes."""

    tensors: dict[str, Tensor]
    heads: int
    hidden_size: int
    vocab_size: int


def published(ours: str) -> str:
    """Published name of a jaxspec parameter: `heads.2.residual.kernel` → `2.0.linear.weight`, `heads.2.head.kernel` →
    `2.1.weight`."""
    _, number, part, kind = ours.split(".")
    return f"{number}.1.weight" if part == "head" else f"{number}.0.linear.{kind.replace('kernel', 'weight')}"


def plan(source: Path) -> PublishedHeads:
    """Reads config and headers of published heads and checks them against each other.

    Raises:
        CheckpointError: the files are invalid, or the folder holds something else.
    """
    raw = head_kinds.read(source, "medusa")
    found = _heads_of(_open(source), source)
    readers.check_dtypes(found)
    if found and all(map(_BLOCK.fullmatch, found)):
        raise CheckpointError(
            f"{source} holds only residual blocks: these heads share the target's LM head, like those of Medusa's "
            "legacy trainer, but jaxspec only supports heads with their own LM heads"
        )
    if several := next(filter(_SECOND_BLOCK.fullmatch, found), None):
        raise CheckpointError(
            f"{source} has heads with several residual blocks (tensor {several}), but jaxspec only supports heads with "
            "one, like those that Medusa's authors publish"
        )
    count = 1 + max((int(name.split(".")[0]) for name in found if name.split(".")[0].isdecimal()), default=-1)
    named = raw.get("medusa_num_heads", count)
    if not isinstance(named, int) or count < max(named, 1):
        raise CheckpointError(
            f"{source / 'config.json'} says medusa_num_heads {named}, and the files hold {count}; they are incomplete, "
            "or their config belongs to other heads"
        )
    table = found.get("0.1.weight")
    vocab, width = table.shape if table is not None and len(table.shape) == 2 else (1, 1)  # then `match` reports it
    tensors = match(_abstract(width, vocab, count), found, published, str(source))
    return PublishedHeads(tensors, count, width, vocab)


def convert(source: Path, out: Path, target: Path, dtype: str | None = None) -> heads.HeadConfig:
    """Converts published heads into the head `out`.

    Args:
        source: folder of the heads.
        out: folder to make; must not exist.
        target: the checkpoint that they were trained for.
        dtype: dtype of every parameter; None keeps each tensor's own.

    Raises:
        CheckpointError: the source is invalid or for another target; nothing is left at `out`.
        ValueError: `out` exists.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    planned, goal = plan(source), config_json.read_config(target).model
    theirs = dataclasses.replace(goal, vocab_size=planned.vocab_size, hidden_size=planned.hidden_size)
    heads.check_same_shape(source, theirs, goal)
    source_dtype = main_dtype(planned.tensors.values())
    config = heads.HeadConfig(Medusa.name, goal, dtype or source_dtype, source_dtype, {"heads": planned.heads})
    write_head(source, out, config, planned.tensors, dtype, f"{planned.heads} Medusa heads")
    return config


def export(source: Path, out: Path) -> None:
    """Writes heads in the published format, as safetensors.

    Raises:
        CheckpointError: `source` holds no Medusa heads.
        ValueError: `out` exists.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    config = head_config(source, Medusa.name)
    count, model = config.settings["heads"], config.model
    arrays = head_arrays(source, config, _abstract(model.hidden_size, model.vocab_size, count))
    values = {"medusa_num_heads": count, "medusa_num_layers": 1, "torch_dtype": config.source_dtype}
    write_published(out, arrays, values, "medusa_lm_head.safetensors", published)
    say(
        f"wrote {out}: {count} Medusa heads, {config.source_dtype}; Medusa's own code also needs the target's name in "
        "config.json, as base_model_name_or_path"
    )


def _open(source: Path) -> Source:
    """The tensors of the heads' own file, or those of the model's files if the heads were merged into it."""
    for suffix, opener in (("safetensors", readers.open_safetensors), ("pt", readers.open_torch)):
        if (file := source / f"medusa_lm_head.{suffix}").exists():
            return opener(file)
    return readers.open_directory(source)


def _heads_of(tensors: Source, source: Path) -> Source:
    """The heads' tensors, without the prefix of a merged model."""
    own = {name.removeprefix(_MERGED): tensor for name, tensor in tensors.items() if name.startswith(_MERGED)}
    if own and len(own) < len(tensors):
        say(f"{source} holds a model with its heads; only the heads are converted")
    return own or tensors


def _abstract(width: int, vocab: int, count: int) -> MedusaHeads:
    return nnx.eval_shape(lambda: MedusaHeads(width, vocab, rngs=nnx.Rngs(0), heads=count))
