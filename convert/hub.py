"""Models named by a Hugging Face hub id: downloads into huggingface-hub's cache, which resume if interrupted."""

import re
from pathlib import Path

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.tokenizer import FILES

_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_CONFIGS = ["config.json", "generation_config.json", *FILES]
# The weights at the top of a repository; safetensors first, since only they need no PyTorch.
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def locate(source: str, revision: str | None) -> Path:
    """The folder that an argument names: its own, or where the hub's files are. Raises CheckpointError."""
    if is_hub_id(source):
        return fetch(source, revision)
    if revision is not None:
        raise CheckpointError(f"--revision needs a hub id, and {source} is none")
    return Path(source)


def is_hub_id(source: str) -> bool:
    """Whether an argument reads as `org/model` and is no path that exists."""
    return _ID.fullmatch(source) is not None and not Path(source).exists()


def fetch(name: str, revision: str | None = None) -> Path:
    """Folder of a hub model's config, tokenizer and weights; code files are never fetched.

    Raises:
        CheckpointError: no such model or revision, no access to it, or no network and not in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    folder = Path()
    for weights in _WEIGHTS:
        try:
            patterns = [*_CONFIGS, weights, f"{weights}.index.json"]
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        except LocalEntryNotFoundError as error:
            raise CheckpointError(
                f"{name} is neither a folder here nor in the hub's cache, and the hub cannot be reached; "
                "check the path, or the network and HF_HUB_OFFLINE"
            ) from error
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{name} cannot be fetched from the hub: {reason}") from error
        if any(folder.glob(weights)):
            break
    return folder
