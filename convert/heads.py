"""Published draft heads of every kind, to jaxspec's format and back, bit for bit.

`eagle`, `eagle3`, `dflash` and `medusa` read a kind's settings and write its config. Here is what is common to all.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import dflash, eagle, eagle3, head_kinds, medusa
from jaxspec.convert.folders import format_of
from jaxspec.convert.head_parts import OwnHead, PublishedHead, draft_maps, lm_head_of
from jaxspec.convert.names import is_kernel
from jaxspec.convert.readers import Tensor
from jaxspec.convert.transfer import main_dtype, read_back, total_bytes, write_json, write_params, write_tensors
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters import DRAFTERS
from jaxspec.engine.head_weights import abstract_head, read_shape
from jaxspec.host.atomic import staged
from jaxspec.host.terminal import say

_KINDS = {"eagle": eagle, "eagle3": eagle3, "dflash": dflash, "medusa": medusa}
# Formats to export, with the drafters whose heads they can describe.
_FORMATS = {**{name: (name,) for name in _KINDS}, **dict.fromkeys(("deepspec", "speculators"), ("eagle3", "dflash"))}


def plan(source: Path, taps: Sequence[int] | None = None, rows: dflash.Rows | None = None) -> PublishedHead:
    """The published head in a folder. Raises CheckpointError if it is invalid, or of a kind that jaxspec does not read.

    Args:
        taps: the target layers whose inputs an EAGLE-3 or block head reads; None: those in its config.
        rows: whether each row of a block head drafts its own position or the next; None: by its config.
    """
    kind = head_kinds.kind_of(source)
    if rows is not None and kind != "dflash":
        raise ValueError(f"--rows is for DFlash and DSpark heads, and {source} holds none")
    if kind == "dflash":
        return dflash.plan(source, taps, rows)
    if kind == "eagle3":
        return eagle3.plan(source, taps)
    if taps is not None:
        raise ValueError(f"--taps is for EAGLE-3 and DFlash heads, and {source} holds none")
    return _KINDS.get(kind, eagle).plan(source)  # EAGLE's refuses every other kind by name


def convert(
    source: Path,
    out: Path,
    target: Path,
    dtype: str | None = None,
    taps: Sequence[int] | None = None,
    rows: dflash.Rows | None = None,
) -> heads.HeadConfig:
    """Converts the published head in `source` into the head `out`, and reports its layout and taps.

    Args:
        target: the checkpoint that the head was trained for.
        dtype: dtype of every parameter; None keeps each tensor's own.
        taps: as in `plan`, as are `rows`.

    Raises:
        CheckpointError: the source is invalid or for another target.
        ValueError: `out` exists, or `taps` or `rows` are given for a head without any.
    """
    head, goal = plan(source, taps, rows), config_json.read_config(target)
    widths = dataclasses.replace(goal.model, vocab_size=head.vocab_size, hidden_size=head.hidden_size)
    heads.check_same_shape(source, widths, goal.model)
    settings, tensors, stored = dict(head.settings), dict(head.tensors), main_dtype(head.tensors.values())
    if head.taps is not None:
        settings = {"taps": _taps(head, source, goal.model.num_layers), **settings}
    lm_head = lm_head_of(goal)
    if head.lm_head is not None and lm_head is not None and not _is_targets(head.lm_head, target, lm_head):
        raise CheckpointError(f"tensor {head.lm_head.name} in {source} is not the LM head of {target}; name its target")
    for setting, ours, theirs, what in (
        ("own_embedding", "embedding", "embedding", "an embedding"),
        ("own_head", "head.kernel", lm_head, "an LM head"),
    ):
        if setting not in settings:
            continue
        if unlike := "" if ours not in tensors else _unlike(tensors[ours], target, theirs, stored):
            say(f"{source} has {what} of its own, {unlike}: it is kept with the head")
        else:
            tensors.pop(ours, None)
        settings[setting] = bool(unlike)
    if head.options is not None:
        settings = head.options.from_settings(settings).settings
    config = heads.HeadConfig(head.drafter.name, head.model or goal.model, dtype or stored, stored, settings)
    try:
        head.drafter.check_head(HeadShape(config.model, settings), goal.model)
    except ValueError as error:
        raise CheckpointError(f"the head at {source} {error}") from error
    if config.model.rope.scaling == "dynamic" and config.model.usable_length < goal.model.usable_length:
        say(
            f"warning: the rope of {source} has dynamic scaling from {config.model.usable_length} tokens on; there "
            "jaxspec drafts without it, and fewer drafts are accepted"
        )
    if head.taps is not None:
        say(f"{source} has the layout of {head.config.layout}")
        say(f"it reads the inputs of layers {', '.join(map(str, settings['taps']))} (from 0): {head.taps.reason}")
    with staged(out, total_bytes(tensors, dtype)) as folder:
        write_params(tensors, dtype, source, folder, out)
        heads.write_config(folder, config)
    count = sum(math.prod(tensor.shape) for tensor in tensors.values())
    say(f"wrote {out}: {head.title}, {count:,} parameters, {config.dtype}")
    return config


def export(source: Path, out: Path, form: str, target: Path | None = None, verifier: str | None = None) -> None:
    """Writes the head in `source` in a published format, as safetensors, into a new folder.

    Args:
        form: as in the options of `jaxspec-convert export`.
        target: the head's target; None: the checkpoint whose `heads` folder contains the head.
        verifier: the target's name in a `speculators` config, a hub id or a folder; None: the target's folder.

    Raises:
        CheckpointError: the format cannot describe the head, or its target is not known or does not fit.
    """
    if format_of(source) == config_json.FORMAT:
        raise CheckpointError(f"{source} is a checkpoint, which --format hf writes; --format {form} takes a head")
    config = heads.read_config(source)
    if config.drafter not in _FORMATS[form]:
        config = heads.read_head(source, _FORMATS[form][0])  # raises: it is for another drafter
    drafter, goal = DRAFTERS[config.drafter](), None
    if form != "medusa":  # its files hold nothing about the target
        if target is None:
            folder = source.absolute().parent
            if folder.name != "heads" or format_of(folder.parent) != config_json.FORMAT:
                raise CheckpointError(f"{source} is not in a folder CKPT/heads; name its target with --target CKPT")
            target = folder.parent
        goal = config_json.read_config(target)
        read_shape(source, drafter, goal.model)  # it raises where the head is not for this target
    abstract = abstract_head(source, drafter, HeadShape(config.model, config.settings))
    arrays = read_back(source, parameters.read_shapes(source / "params", abstract), config)
    head, kind = OwnHead(source, config, arrays, target, goal, verifier), _KINDS[config.drafter]
    lacks = {each: next((what for has, what in checks if has), "") for each, checks in kind.unsupported(head).items()}
    if what := lacks[form]:
        others = [each for each, lack in lacks.items() if not lack]
        advice = f"use --format {' or '.join(others)}" if others else "export another head"
        raise CheckpointError(f"the head at {source} {what}, which --format {form} cannot describe; {advice}")
    files, maps = kind.files(head, form), draft_maps(config.settings.get("draft_vocabulary"), config.model.vocab_size)
    arrays, published = {**files.arrays, **maps}, lambda ours: ours if ours in maps else files.published(ours)
    with staged(out, sum(array.nbytes for array in arrays.values())) as folder:
        write_tensors(folder / files.name, arrays, published)
        write_json(folder / "config.json", files.config)
    say(f"wrote {out}: {files.summary}, {config.source_dtype}")


def _taps(head: PublishedHead, source: Path, target_layers: int) -> list[int]:
    """The layers that a head reads. Raises CheckpointError for another number of layers, or the last one's output."""
    if (given := head.config.raw.get("num_target_layers")) not in (None, target_layers):
        raise CheckpointError(
            f"the head at {source} is for a target of {given} layers, and this one has {target_layers}"
        )
    assert head.taps is not None
    layers = head.taps.of(target_layers)
    if target_layers in layers:
        raise CheckpointError(
            f"the head at {source} reads the output of the target's last layer, and projects disagree on its norm"
        )
    return list(layers)


def _unlike(tensor: Tensor, target: Path, name: str | None, stored: str) -> str:
    """Why a head keeps its own tensor; empty if the target's is used instead."""
    if name is None:
        return f"which cannot be compared with the quantised one of {target}"
    if tensor.dtype != stored:  # export could not restore its dtype
        return f"in {tensor.dtype} and not in {stored} as the others"
    return "" if _is_targets(tensor, target, name) else f"unlike that of {target}"


def _is_targets(tensor: Tensor, target: Path, name: str) -> bool:
    """Whether a tensor equals a parameter of the target bit for bit."""
    array = parameters.read_arrays(target / "params", [name])[name]
    with np.errstate(over="ignore"):  # an overflow is a difference
        array = (array.T if is_kernel(name) else array).astype(tensor.dtype, copy=False)
    bits = f"u{array.itemsize}"  # compared as bits, because -0 == 0
    return np.array_equal(tensor.read().view(bits), array.view(bits))
