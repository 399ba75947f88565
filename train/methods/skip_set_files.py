"""Skip sets on disk: a head without weights, whose config.json names the blocks that are left out."""

from pathlib import Path

from jaxspec.checkpoint import heads
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.layer_skip import LayerSkip
from jaxspec.drafters.skip_mask import SkipMask, layers_of, skip
from jaxspec.engine.head_weights import head_config, read_shape


def write_skip_set(path: Path, target: CheckpointConfig, skips: SkipMask) -> None:
    """Writes a set into the folder `path`, which may be there already; methods can name it by its path."""
    path.mkdir(parents=True, exist_ok=True)
    heads.write_config(path, head_config(LayerSkip(), HeadShape(target.model, layers_of(skips)), target))


def read_skip_set(path: Path, target: CheckpointConfig) -> SkipMask:
    """The set at `path`, trained or not. Raises CheckpointError where it is none, or another target's."""
    shape = read_shape(path, LayerSkip(), target.model)
    return skip(target.model.num_layers, shape.settings["attention"], shape.settings["mlp"])
