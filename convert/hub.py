"""Models named by a Hugging Face hub id: downloads into huggingface-hub's cache, which resume if interrupted."""

import re
from pathlib import Path

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.tokenizer import FILES

_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_CONFIGS = ["config.json", "generation_config.json", "params.json", "adapter_config.json", *FILES]
# Weight files at the top of a repository. Safetensors come first, because reading them does not need PyTorch.
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "consolidated*.safetensors", "consolidated.*.pth")


def locate(source: str, revision: str | None, weights: tuple[str, ...] = _WEIGHTS) -> Path:
    """The folder of an argument: a local one, or that of the downloaded files. Raises CheckpointError."""
    if is_hub_id(source):
        return fetch(source, revision, weights)
    if revision is not None:
        raise CheckpointError(f"--revision needs a hub id, and {source} is not one")
    return Path(source)


def is_hub_id(source: str) -> bool:
    """Whether an argument has the form `org/model` and is not an existing path."""
    return _ID.fullmatch(source) is not None and not Path(source).exists()


def fetch(name: str, revision: str | None = None, weights: tuple[str, ...] = _WEIGHTS) -> Path:
    """The folder of a hub model's config, tokenizer and weights. Code files are never downloaded.

    Args:
        weights: patterns of weight files, of which the first that the model has are fetched.

    Raises:
        CheckpointError: there is no such model or revision, no access, or no network and the model is not in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    folder = Path()
    for pattern in weights or ("",):
        try:
            patterns = [*_CONFIGS, *([pattern, f"{pattern}.index.json"] if pattern else [])]
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        except LocalEntryNotFoundError as error:
            raise CheckpointError(
                f"{name} is not a local folder, it is not in the hub's cache, and the hub cannot be reached; check the "
                "path, or the network and HF_HUB_OFFLINE"
            ) from error
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{name} cannot be fetched from the hub: {reason}") from error
        if pattern and any(folder.glob(pattern)):
            break
    return folder
