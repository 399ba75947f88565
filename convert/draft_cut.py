"""Cuts heads to a draft vocabulary: the LM head keeps only the columns of some tokens (FR-Spec, arXiv:2502.14856).

Nothing is trained again. The text stays the target's, which verifies with its whole vocabulary.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Int32
from rich import filesize

from jaxspec.checkpoint import checksums, config_json, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.checkpoint.loading import check_same_vocabulary
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.controllers.cali_ts import FOLDER as PREDICTOR
from jaxspec.convert import readers
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters import DraftModel, Edd
from jaxspec.drafters.draft_vocabulary import ids_of, to_mask
from jaxspec.engine.head_weights import drafter_of, is_checkpoint, read_shape
from jaxspec.host.atomic import staged
from jaxspec.host.buckets import files_under
from jaxspec.host.terminal import say
from jaxspec.model.quantization import LM_HEAD, dense, pack, whole_name


def cut(source: Path, out: Path, target: Path, ids: Iterable[int]) -> heads.HeadConfig:
    """Writes the head `out`: the head at `source`, but with a draft vocabulary of these tokens and EOS.

    A head that used the target's LM head gets its own copy of the columns. All other parameters are copied, and so is
    an acceptance predictor in the head's folder. `source` may also be a checkpoint that is a draft model.

    Raises:
        CheckpointError: `source` is for another target, already has a draft vocabulary, or has no LM head.
        ValueError: `out` exists, or the ids are invalid or the whole vocabulary.
    """
    goal = config_json.read_config(target)
    drafter = drafter_of(target, str(source))
    shape = read_shape(source, drafter, goal.model)
    if is_checkpoint(source):
        check_same_vocabulary(goal, load_tokenizer(target), source)
    if shape.settings.get("draft_vocabulary") is not None:
        raise CheckpointError(f"the head at {source} already has a draft vocabulary; cut one that has none")
    rows, wanted = goal.model.vocab_size, {*ids, *goal.eos}
    if max(wanted, default=0) >= shape.model.vocab_size < rows:
        raise ValueError(f"the draft vocabulary has token {max(wanted)}, and the draft model has no such token")
    mask = to_mask(wanted, rows)
    if mask is None:
        raise ValueError("the draft vocabulary is the target's whole vocabulary, so there is nothing to cut")
    model = dataclasses.replace(shape.model, vocab_size=rows)  # a draft model's vocabulary may be padded otherwise
    smaller = HeadShape(model, {**shape.settings, "draft_vocabulary": mask})
    try:
        abstract = nnx.eval_shape(lambda: drafter.build_head(smaller, nnx.Rngs(0)))
    except TypeError as error:
        raise CheckpointError(f"the head at {source} is for {drafter.name}, whose LM head cannot be cut") from error
    stored = source / "params"  # a skip set may have none
    params = parameters.read_arrays(stored, parameters.read_shapes(stored)) if stored.is_dir() else {}
    drafted, quantize = ids_of(mask, rows), shape.settings.get("quantize")
    tied = {Edd: "decoder.embedding", DraftModel: "embedding"}.get(type(drafter))  # if it has no LM head
    lm_head = lambda: _lm_head(target, goal) if tied is None else params[tied].T
    fitted = dict(params)
    if (table := params.get("embedding")) is not None:
        fitted["embedding"] = np.pad(table[:rows], [(0, max(0, rows - len(table))), (0, 0)], "edge")
    kept = cut_params(fitted, abstract, drafted, lm_head, quantize)
    whole = config_json.read_config(source) if is_checkpoint(source) else heads.read_config(source)
    method, width = (whole.method, whole.target_width) if isinstance(whole, heads.HeadConfig) else (None, None)
    kinds = (whole.dtype, whole.source_dtype)
    config = heads.HeadConfig(drafter.name, model, *kinds, dict(smaller.settings), whole.chat_args, method, width)
    size, before = (sum(array.nbytes for array in arrays.values()) for arrays in (kept, params))
    with staged(out, size) as folder:
        parameters.write_params(folder / "params", kept.items())
        checksums.write(folder)
        for file in files_under(source / PREDICTOR):
            (to := folder / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(file.read_bytes())
        heads.write_config(folder, config)
    say(
        f"wrote {out}: {drafter.name}, which drafts {len(drafted)} of {rows} tokens, {filesize.decimal(size)} instead "
        f"of {filesize.decimal(before)}"
    )
    return config


def read_ids(path: Path) -> list[int]:
    """Token ids from a JSON list, numbers separated by white space, or a list or tensor saved by PyTorch (FR-Spec)."""
    try:
        if path.suffix in (".pt", ".bin"):
            loaded = readers.load_torch(path)
            values = loaded if isinstance(loaded, list) else np.asarray(loaded).tolist()
        else:
            text = path.read_text(encoding="utf-8-sig")
            values = json.loads(text) if text.lstrip().startswith("[") else [int(word) for word in text.split()]
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, RuntimeError) as error:  # torch raises many kinds, JSON RecursionError
        raise CheckpointError(f"{path} holds no list of token ids: {error}") from error
    is_id = lambda value: type(value) is int and abs(value) < 2**31
    if not isinstance(values, list) or not values or not all(map(is_id, values)):
        raise CheckpointError(f"{path} holds no list of token ids; give one or more whole numbers of at most 32 bits")
    return values


def cut_params(
    params: Mapping[str, np.ndarray],
    abstract: nnx.Module,
    ids: Int32[np.ndarray, " C"],
    lm_head: Callable[[], np.ndarray],
    quantize: str | None = None,
) -> dict[str, np.ndarray]:
    """The parameters of the head `abstract`: columns `ids` of LM heads, and copies of all other parameters.

    If the whole head has no LM head, `lm_head` gives the kernel [D, V] to cut, and `quantize` is its new dtype, if any.
    """
    cut_arrays: dict[str, np.ndarray] = {}
    for name, leaf in module_to_dict(abstract).items():
        if name in params:
            cut_arrays[name] = params[name] if params[name].shape == leaf.shape else params[name][..., ids]
        elif name not in cut_arrays:
            packed = pack(whole_name(name), lm_head()[:, ids], quantize)
            cut_arrays |= {part: np.asarray(array) for part, array in packed.items()}
    return {name: np.ascontiguousarray(array) for name, array in cut_arrays.items()}


def _lm_head(target: Path, goal: CheckpointConfig) -> np.ndarray:
    """The target's LM head, [D, V]."""
    name = "embedding" if goal.model.tie_embeddings else LM_HEAD
    stored = parameters.read_shapes(target / "params")
    arrays = parameters.read_arrays(target / "params", [part for part in stored if whole_name(part) == name])
    array = np.asarray(dense({part: jnp.asarray(values) for part, values in arrays.items()}, [name])[name])
    return array.T if name == "embedding" else array
