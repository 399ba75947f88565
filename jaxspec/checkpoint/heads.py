"""Trained heads on disk: `config.json` and `params/`, in a folder under CKPT/heads or anywhere."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from flax import nnx

from jaxspec.checkpoint import checksums, config_json, parameters
from jaxspec.checkpoint.builtin import from_hub, is_hub_id
from jaxspec.checkpoint.config_json import CheckpointError, check_dtypes, fields_of, to_text
from jaxspec.host.arguments import integer
from jaxspec.host.buckets import to_path
from jaxspec.model.config import LlamaConfig

FORMAT = "jaxspec-head"
CALIBRATION = "confidence.json"
"""File of a head's folder with the temperatures of its confidence head, from `jaxspec calibrate`."""


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """The `config.json` of a head."""

    drafter: str  # the name of the drafter that it is for
    model: LlamaConfig  # shape of its layers (the target's if it has none); its vocabulary is the target's
    dtype: str  # of the parameters on disk
    source_dtype: str  # on export
    settings: dict[str, Any]  # from which its drafter builds it
    chat_args: dict[str, Any] | None = None  # of the chat template in training; None: unknown, or other text
    method: str | None = None  # to decode with this head where no method is named; None: its drafter's default
    target_width: int | None = None  # its target's hidden size; None: in the settings, or the model's

    def __post_init__(self) -> None:
        check_dtypes(self.dtype, self.source_dtype)
        if not isinstance(self.settings, dict):
            raise ValueError(f"settings must be an object, not {self.settings!r}")
        if not isinstance(self.method, str | None):
            raise ValueError(f"method must be a string or null, not {self.method!r}")
        if self.target_width is not None:
            integer("target_width", self.target_width, 1)

    @property
    def of_target(self) -> LlamaConfig:
        """A shape with the vocabulary and hidden size of its target, whose width may differ from the head's."""
        width = self.target_width or self.settings.get("target_width") or self.model.hidden_size
        return dataclasses.replace(self.model, hidden_size=width)


def read_config(path: Path) -> HeadConfig:
    """Reads the config of a head. Raises CheckpointError if it is missing or damaged."""
    file = path / "config.json"
    try:
        return HeadConfig(**fields_of(file.read_text(encoding="utf-8"), HeadConfig, FORMAT))
    except OSError as error:
        raise CheckpointError(f"there is no readable head at {path}: {file}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{file} is not the config of a trained head: {error}") from error


def read_calibration(path: Path) -> dict[str, list[float]]:
    """The settings that `jaxspec calibrate` measured for a head; empty without any. Raises CheckpointError."""
    file = path / CALIBRATION
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["temperatures"]
        if not all(isinstance(value, float) for value in found):
            raise ValueError("temperatures must be numbers")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file} is damaged: {error}; delete it, or run `jaxspec calibrate` again") from error
    return {"temperatures": found}


def read_head(path: Path, drafter: str) -> HeadConfig:
    """The config of a head. Raises CheckpointError if it is missing, damaged, or for another drafter."""
    config = read_config(path)
    if config.drafter != drafter:
        raise CheckpointError(
            f"the head at {path} is for the drafter {config.drafter}, and not for {drafter}: name it "
            f"{config.drafter}@{path.name}, or {config.drafter}@PATH outside its target's folder"
        )
    return config


def write_config(path: Path, config: HeadConfig) -> None:
    """Writes config.json into the folder of a head, read back by `read_config`."""
    (path / "config.json").write_text(to_text(config, FORMAT), encoding="utf-8")


def write_head(path: Path, config: HeadConfig, module: nnx.Module) -> None:
    """Writes parameters in `config.dtype` into a folder, and then config.json, without which it is no head."""
    params = parameters.module_to_dict(module).items()
    parameters.write_params(path / "params", ((name, param.astype(config.dtype)) for name, param in params))
    checksums.write(path)
    write_config(path, config)


def check_same_shape(path: Path, head: LlamaConfig, target: LlamaConfig) -> None:
    """Raises CheckpointError if a head was trained for a target of another vocabulary or width."""
    for name, word in (("vocab_size", "vocabulary"), ("hidden_size", "hidden size")):
        if (theirs := getattr(head, name)) != (ours := getattr(target, name)):
            raise CheckpointError(f"the head at {path} is for a target of {word} {theirs}, and this target's is {ours}")


def find_head(path: Path, head: str) -> Path:
    """CKPT/heads/HEAD, or HEAD as a path (only that if it begins with `./` or `../`), or a head of the hub, converted.

    Raises CheckpointError naming the heads that are there.
    """
    given = to_path(head)
    for place in [given] if head.startswith(("./", "../")) else [path / "heads" / head, given]:
        if (place / "config.json").exists():
            return place
    if is_hub_id(head):
        return from_hub(head, path)
    there = ", ".join(config_json.head_names(path)) or "none"
    raise CheckpointError(f"no head {head!r} under {path / 'heads'} (found: {there}), and it is not the path of one")
