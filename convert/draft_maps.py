"""`d2t` and `t2d`: the two tensors in published heads that define the draft vocabulary.

`d2t` [Vd] int64 holds offsets: column j of the LM head stands for token j + d2t[j]. `t2d` [V] bool says for each target
token whether it is in the draft vocabulary; some files hold it as whole numbers 0 and 1.
"""

from collections.abc import Mapping

import numpy as np

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.readers import Tensor
from jaxspec.drafters import draft_vocabulary

NAMES = ("d2t", "t2d")


def read(maps: Mapping[str, Tensor], drafted: int, vocab_size: int, where: str) -> str | None:
    """The mask of a head's draft vocabulary, as in `draft_vocabulary`; None for the whole vocabulary.

    Args:
        maps: those of the two tensors that the files contain, by name.
        drafted: rows of the LM head, Vd.
        vocab_size: size of the target's vocabulary, V.
        where: name of the files for error messages.

    Raises:
        CheckpointError: the maps have wrong sizes or dtypes, were never filled, or contradict each other.
    """
    if drafted > vocab_size:
        raise CheckpointError(
            f"lm_head.weight in {where} has {drafted} rows, but the target has only {vocab_size} tokens"
        )
    if "d2t" not in maps:
        if drafted < vocab_size or maps:
            raise CheckpointError(
                f"tensor d2t is missing in {where}; without it, the {drafted} of {vocab_size} tokens of "
                "lm_head.weight are not known; the files are incomplete"
            )
        return None
    offsets = _read(maps["d2t"], "iu", "whole numbers", drafted)
    inside = _read(maps["t2d"], "biu", "truth values", vocab_size) if "t2d" in maps else None
    if inside is not None:
        if inside.min() < 0 or inside.max() > 1:
            raise CheckpointError(f"t2d in {where} must hold truth values, and its numbers are not all 0 or 1")
        inside = inside.astype(bool)
    if drafted < vocab_size and not offsets.any() and (inside is None or inside.all()):
        raise CheckpointError(
            f"d2t in {where} is 0 everywhere, so it was never filled; use d2t and t2d of the head's training"
        )
    ids = offsets.astype(np.int64) + np.arange(drafted)
    if (np.diff(ids) <= 0).any():
        raise CheckpointError(f"d2t in {where} gives ids that do not ascend, so it does not hold offsets")
    try:
        mask = draft_vocabulary.to_mask(ids.tolist(), vocab_size)
    except ValueError as error:
        raise CheckpointError(f"d2t in {where}: {error}") from error
    if inside is not None and not np.array_equal(np.flatnonzero(inside), ids):
        raise CheckpointError(
            f"d2t and t2d in {where} name different tokens ({len(ids)} and {inside.sum()}); one of them belongs to "
            "another head, or d2t holds ids instead of offsets"
        )
    return mask


def write(mask: str | None, vocab_size: int) -> dict[str, np.ndarray]:
    """The two tensors of a mask; none if a head can draft every token."""
    if mask is None:
        return {}
    ids = draft_vocabulary.ids_of(mask, vocab_size).astype(np.int64)
    return {"d2t": ids - np.arange(len(ids)), "t2d": np.isin(np.arange(vocab_size), ids)}


def _read(tensor: Tensor, kinds: str, words: str, size: int) -> np.ndarray:
    if tensor.shape != (size,):
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} has shape {list(tensor.shape)}, and must have [{size}]"
        )
    if (array := tensor.read()).dtype.kind not in kinds:
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} has dtype {tensor.dtype}, and must hold {words}; if it was cast "
            "along with the weights, take the files from before that"
        )
    return array
