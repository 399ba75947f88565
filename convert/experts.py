"""Mixtures of experts: files have one tensor per expert; jaxspec stacks those of all experts in one array."""

import re
from collections.abc import Mapping

import numpy as np

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.readers import Source, Tensor

_ONE = re.compile(r"(.*\.experts)\.(\d+)\.(w[123]\.weight)")  # a tensor of one expert
_ALL = re.compile(r"(.*\.experts)\.(w[123]\.weight)")


def join(tensors: Source, count: int, where: str) -> dict[str, Tensor]:
    """The tensors of a source, with those of a layer's `count` experts stacked to [experts, out, in].

    Raises:
        CheckpointError: an expert is missing, there are too many, or one has another shape.
    """
    joined = {name: tensor for name, tensor in tensors.items() if not _ONE.fullmatch(name)}
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if one := _ONE.fullmatch(name):
            stacks.setdefault(f"{one[1]}.{one[3]}", {})[int(one[2])] = tensor
    for name, stack in stacks.items():
        if wrong := sorted(stack.keys() ^ set(range(count))):
            said = "is missing" if wrong[0] < count else f"is one too many for a config with {count} experts"
            raise CheckpointError(
                f"tensor {_of_expert(name, wrong[0])} {said} in {where}; the files are incomplete, or their config is "
                "another model's"
            )
        joined[name] = _stacked(name, [stack[i] for i in range(count)])
    return joined


def split(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inverse of `join`, for arrays."""
    one_by_one: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        each = enumerate(array) if _ALL.fullmatch(name) else ()
        one_by_one |= {_of_expert(name, i): part for i, part in each} or {name: array}
    return one_by_one


def _of_expert(name: str, i: int) -> str:
    """`a.experts.w1.weight` → `a.experts.3.w1.weight`."""
    return name.replace(".experts.", f".experts.{i}.")


def _stacked(name: str, parts: list[Tensor]) -> Tensor:
    first = parts[0]
    for part in parts:
        if (part.shape, part.dtype) != (first.shape, first.dtype):
            raise CheckpointError(
                f"tensor {part.name} in {part.file} is {part.dtype} {list(part.shape)}, and that of the first expert "
                f"{first.dtype} {list(first.shape)}"
            )
    files = ", ".join(sorted({part.file for part in parts}))
    read = lambda: np.stack([part.read() for part in parts])
    return Tensor(name, (len(parts), *first.shape), first.dtype, files, read)
