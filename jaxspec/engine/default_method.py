"""The method of a checkpoint where none is named. Nothing is measured for it."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.heads import find_head, read_config
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.costs.calibration import how_run, read_speeds, speeds_key
from jaxspec.drafters import DRAFTERS
from jaxspec.engine.head_weights import fitted, heads_of, is_checkpoint
from jaxspec.host.processes import broadcast_from_first
from jaxspec.methods.method import Method, default_method, parse_method, typed


@dataclasses.dataclass(frozen=True)
class Default:
    """The default method, and the reason for it in words."""

    method: Method
    reason: str

    def __str__(self) -> str:
        return f"{self.method} ({self.reason})"


def default_of(model: Checkpoint, batch_size: int = 1) -> Default:
    """The default of a loaded checkpoint; see `default_at`."""
    return default_at(model.path, model.heads, **how_run(model), batch_size=batch_size)


def default_at(path: Path, heads: Sequence[str], *, dtype: str, device: str, batch_size: int = 1) -> Default:
    """The fastest method, if `jaxspec calibrate --all` has stored the speeds of this checkpoint on this device.

    Otherwise the trained head that comes first in the order of preference, with the `method` of its config.json if
    there is one; or prompt lookup. All processes use the first one's choice.

    Args:
        dtype, device: as in `CostKey`.
        batch_size: sequences decoded together; each power of two has speeds of its own.

    Raises:
        CheckpointError: the head's config.json names a method that does not exist or is not of this head.
    """

    def stored() -> dict[str, str]:
        try:
            key = speeds_key(path, heads, dtype=dtype, device=device, batch_size=batch_size)
            speeds = read_speeds(key)
            fastest = max(speeds, key=speeds.__getitem__)
            parse_method(fastest)
        except FileNotFoundError:
            size = "" if batch_size == 1 else f" --batch-size {batch_size}"
            return {"missing": f"`jaxspec calibrate --all{size}` finds the fastest"}
        except (OSError, ValueError) as error:
            return {"missing": str(error)}
        return {"fastest": fastest}

    choice = broadcast_from_first(stored)
    if "fastest" in choice:
        return Default(parse_method(choice["fastest"]), "the fastest by `jaxspec calibrate --all`")
    usable, unusable = heads_of(path, heads)
    # A head that cannot be read counts as one of the drafter of its name, so that loading it raises the reason.
    names = [*usable.values(), *(head for head in unusable if head in DRAFTERS)]
    left_out = [f"the head {head} is left out: {why}" for head, why in unusable.items() if head not in DRAFTERS]
    method = named_by_head(path, default_method(names))
    with contextlib.suppress(CheckpointError):  # loading the head raises it again
        method = fitted(path, method)
    return Default(method, "; ".join(("first in the order of preference", choice["missing"], *left_out)))


def named_by_head(path: Path, usual: Method) -> Method:
    """The method in the config.json of a method's head, or the method itself if there is none or no readable head."""
    if usual.head is None:
        return usual
    try:
        folder = find_head(path, usual.head)
        text = None if is_checkpoint(folder) else read_config(folder).method
    except CheckpointError:  # loading the head raises it again
        return usual
    try:
        method = usual if text is None else parse_method(text)
        if method.drafter.name != usual.drafter.name or method.head not in (usual.head, usual.drafter.name):
            drafter = typed(usual.drafter.name, usual.head)
            raise ValueError(f"method {text!r} is not one of this head; write {drafter} before its settings")
    except ValueError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from error
    return dataclasses.replace(method, head=usual.head)
