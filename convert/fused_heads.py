"""Shared by the conversions of EAGLE-3 and DFlash heads, which fuse the inputs of several target layers.

Each has a function `plan`, which reads config and headers of a published head and checks them against each other, and
a function `convert`, which writes it as a head of a target. For invalid input both raise CheckpointError and leave
nothing behind.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoint import heads
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.head_parts import Taps
from jaxspec.convert.readers import Source, Tensor
from jaxspec.convert.transfer import write_head
from jaxspec.decoding.drafter import Drafter, HeadShape
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig


def check_depth(said: Any, goal: LlamaConfig, source: Path) -> None:
    """Raises CheckpointError if a config says that the head's target has another number of layers than this one."""
    if said not in (None, goal.num_layers):
        raise CheckpointError(
            f"the head at {source} was trained for a target of {said} layers, and this target has {goal.num_layers}"
        )


def count_read(found: Source, taps: Taps, otherwise: int, width: int, source: Path) -> int:
    """Number of target layers that the head reads. Raises CheckpointError if its fc does not fit this number.

    Args:
        otherwise: the number if the config lists no layers.
        width: the target's hidden size.
    """
    count, fc = len(taps.layers or range(otherwise)), found.get("fc.weight")
    if fc is not None and len(fc.shape) == 2 and (reads := fc.shape[1] // width) != count:
        raise CheckpointError(
            f"fc.weight in {source} reads {reads} layers of the target, and {count} are named: {taps.reason}; name "
            "them with --taps"
        )
    return count


def write(
    drafter: Drafter,
    kind: str,
    config: heads.HeadConfig,
    tensors: dict[str, Tensor],
    source: Path,
    out: Path,
    goal: LlamaConfig,
    dtype: str | None,
    said: Sequence[str],
) -> heads.HeadConfig:
    """Writes a head that was read, after it was checked against its target, and returns its config.

    Args:
        kind: what it is called, such as `DFlash head`.
        config: its settings have its `taps`.
        goal: the target's shape.
        said: its layout, and why its taps are those.

    Raises:
        CheckpointError: the head does not fit the target.
    """
    try:
        drafter.check_head(HeadShape(config.model, config.settings), goal)
    except ValueError as error:
        raise CheckpointError(f"the head at {source} {error}") from error
    layout, reason = said
    say(f"{source} has {layout}")
    say(f"it reads the inputs of layers {', '.join(map(str, config.settings['taps']))} (from 0): {reason}")
    write_head(source, out, config, tensors, dtype, kind)
    return config
