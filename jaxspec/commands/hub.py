"""Models and draft heads of the Hugging Face hub, converted into the user's cache folder when they are first used."""

from pathlib import Path

import jax

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import folders, head_kinds, heads, hf_config, llama
from jaxspec.costs.calibration import weights_sha256
from jaxspec.host.environment import cache_folder
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig


def fetch(name: str, target: Path | None = None) -> Path:
    """The folder of a model ORG/NAME of the hub, or of a draft head or draft model for the checkpoint `target`.

    A converted one is used without looking at the hub again. Otherwise it is downloaded into huggingface-hub's cache,
    and converted in the dtype of its files; stderr names both.

    Raises CheckpointError if that fails, or if one of several processes would have to do it.
    """
    model = cache_folder() / "hub" / name.replace("/", "--")
    # A head is converted for one target: tensors that equal the target's are left out.
    digest = None if target is None else weights_sha256(target)
    head = None if digest is None else model.with_name(f"{model.name}.{digest[:12]}")
    for place in filter(None, (head, model)):
        # Not the target itself, whose folder on the hub may hold Medusa heads too.
        if (place / "config.json").is_file() and weights_sha256(place) != digest:
            return place
    if jax.process_count() > 1:
        command = f"llama {name}" if target is None else f"head {name} --target {target}"
        raise CheckpointError(
            f"{name} is not converted yet, which a command on several hosts does not do; run first: jaxspec-convert "
            f"{command} FOLDER, and name a FOLDER that all of them see"
        )
    source = folders.locate(name, None, folders.WEIGHTS if target is None else folders.HEAD_WEIGHTS)
    is_model = head is None or head_kinds.kind_of(source) == "model"
    place = model if head is None or is_model else head
    if (place / "config.json").is_file():  # a model that drafts for itself
        return place
    say(f"{name} is converted once, from {source} to {place}")
    place.parent.mkdir(parents=True, exist_ok=True)
    if target is None or is_model:
        llama.convert(source, place)
    else:
        heads.convert(source, place, target)
    return place


def shape(name: str) -> LlamaConfig:
    """The shape of a model of the hub, of which only config files are fetched. Raises CheckpointError as `fetch`."""
    folder = folders.locate(name, None, weights=())
    if not any((folder / file).is_file() for file in ("config.json", "adapter_config.json")):
        raise CheckpointError(
            f"{name} on the hub has no config.json, from which its shape is read; convert it with `jaxspec-convert "
            f"llama {name} FOLDER`, and name FOLDER"
        )
    return hf_config.to_llama(folders.read_config(folder))
