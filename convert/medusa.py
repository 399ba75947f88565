"""Medusa heads in their published format.

The number of heads is counted, because published configs have 2 where the files hold 5.
"""

import re
from pathlib import Path

from flax import nnx

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import head_kinds, readers
from jaxspec.convert.head_parts import INCOMPLETE, Files, OwnHead, PublishedHead, Unsupported
from jaxspec.convert.names import MEDUSA, unprefixed
from jaxspec.convert.readers import Source
from jaxspec.convert.transfer import match
from jaxspec.drafters.medusa import Medusa, MedusaHeads
from jaxspec.host.terminal import say

_BLOCK = re.compile(r"\d+\.\d+\.linear\.(weight|bias)")


def plan(source: Path) -> PublishedHead:
    """Reads config and headers of published heads; see `heads.plan`."""
    config = head_kinds.read(source, "medusa")
    tensors = _open(source)
    readers.check_dtypes(tensors)
    if tensors and all(map(_BLOCK.fullmatch, tensors)):
        raise CheckpointError(f"{source} holds only residual blocks, and only heads with their own LM heads are read")
    numbers = {int(name.split(".")[0]) for name in tensors if name.split(".")[0].isdecimal()}
    count = 1 + max(numbers, default=-1)
    if count > len(numbers):  # before so many heads are built
        first = next(number for number in range(count) if number not in numbers)
        raise CheckpointError(f"tensor {first}.0.linear.bias is missing in {source}, which holds head {count - 1}")
    named = config.raw.get("medusa_num_heads", count)
    if not isinstance(named, int) or count < max(named, 1):
        raise CheckpointError(f"{config.file} has medusa_num_heads {named}, and the files hold {count}; {INCOMPLETE}")
    table = tensors.get("0.1.weight")
    # If the shape is wrong, `match` reports it.
    vocab, width = table.shape if table is not None and len(table.shape) == 2 and all(table.shape) else (1, 1)
    abstract = nnx.eval_shape(lambda: MedusaHeads(width, vocab, rngs=nnx.Rngs(0), heads=count))
    matched = match(abstract, tensors, _published, str(source))
    return PublishedHead(config, Medusa(), "Medusa heads", vocab, width, {"heads": count}, _published, matched)


def unsupported(head: OwnHead) -> Unsupported:
    """What the format does not support; see `heads.export`."""
    return {"medusa": ((head.config.settings.get("draft_vocabulary") is not None, "was cut to a draft vocabulary"),)}


def files(head: OwnHead, form: str) -> Files:
    """The files of heads in the published format; see `heads.export`."""
    config, count = head.config, head.config.settings["heads"]
    values = {"medusa_num_heads": count, "medusa_num_layers": 1, "torch_dtype": config.source_dtype}
    say(
        "TensorRT-LLM loads these files; text-generation-inference needs the target's name in config.json too, as "
        "base_model_name_or_path, and Medusa's own code that and the tensors as medusa_lm_head.pt, by torch.save"
    )
    return Files(values, head.arrays, _published, f"{count} Medusa heads", "medusa_lm_head.safetensors")


def _published(ours: str) -> str:
    """Published name: `heads.2.residual.kernel` → `2.0.linear.weight`, `heads.2.head.kernel` → `2.1.weight`."""
    _, number, part, kind = ours.split(".")
    return f"{number}.1.weight" if part == "head" else f"{number}.0.linear.{kind.replace('kernel', 'weight')}"


def _open(source: Path) -> Source:
    """The tensors of the heads' own file, or their part of the model's files, without a prefix, if they were merged."""
    files = [file for suffix in ("safetensors", "pt") if (file := source / f"medusa_lm_head.{suffix}").exists()]
    if len(files) > 1:
        say(f"warning: {source} holds both {' and '.join(file.name for file in files)}; only the first is read")
    tensors = unprefixed(readers.open_file_or_shards(files[0]) if files else readers.open_directory(source), source, ())
    own = {name.removeprefix(MEDUSA): tensor for name, tensor in tensors.items() if name.startswith(MEDUSA)}
    if own and len(own) < len(tensors):
        say(f"{source} holds a model with its heads; only the heads are converted")
    return own or tensors
