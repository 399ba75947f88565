"""The Hugging Face hub: requests that are repeated, and the sentences of failures."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.host.terminal import say

T = TypeVar("T")
PAUSES = (2, 4, 8, 16, 32, 64)  # seconds before another request to a busy hub, unless it names more
BUSY = (408, 429, 500, 502, 503, 504)  # HTTP statuses of a busy hub
_LONGEST = 300  # seconds of a pause that the hub names; its limits count requests in five minutes


def ask(name: str, work: Callable[[], T]) -> T:
    """The result of `work`, a request about a model, repeated while the hub is busy. Raises CheckpointError."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    for pause in (*PAUSES, None):
        try:
            return work()
        except Exception as raised:
            error = _answer(raised)
            response: Any = error.response if isinstance(error, HfHubHTTPError) else None
            status = None if response is None else response.status_code
            broken = is_of_client(error)
            if not broken and not isinstance(error, HfHubHTTPError | HFValidationError | OSError):
                raise
            if pause is None or not (broken or status in BUSY):
                raise CheckpointError(reason(name, raised)) from raised
            named = "" if response is None else response.headers.get("Retry-After", "")
            wait = max(pause, min(int(named), _LONGEST)) if named.isdecimal() else pause
            say(f"the hub {f'answers {status}' if status else 'does not answer'}; trying again in {wait} s")
            time.sleep(wait)
    raise AssertionError("the last pause is None")


def reason(name: str, raised: BaseException, kind: str = "model") -> str:
    """The sentence on an error of huggingface-hub: why something cannot be fetched, and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    error = _answer(raised)
    if is_of_client(error) or isinstance(error, ConnectionError | LocalEntryNotFoundError):
        return (
            f"{name} is neither here nor in the hub's cache, and the hub cannot be reached; check the path, or the "
            "network and HF_HUB_OFFLINE"
        )
    if isinstance(error, GatedRepoError):
        return f"{name} is gated: ask for access on its page of the hub, and set HF_TOKEN to a token of that account"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no {name} here, and the hub has no such {kind}, or it is private; check the name, or set "
            "HF_TOKEN to a token that may read it"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{name} has no such revision on the hub; check --revision"
    if isinstance(error, OSError) and error.errno is not None:
        where = error.filename or constants.HF_HUB_CACHE
        return f"{name} cannot be downloaded: {where}: {error.strerror}; HF_HUB_CACHE can name a folder on another disk"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status in (401, 403):
        return f"the hub denies access to {name} ({status}); set HF_TOKEN to a valid token that may read it"
    later = "; run the same command again later" if status in BUSY else ""
    return f"{name} cannot be fetched from the hub: {' '.join(str(error).split())[:200].rstrip('.')}{later}"


def _answer(error: BaseException) -> BaseException:
    """The hub's own error, where huggingface-hub raised one about its cache instead."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    cause = error.__cause__
    return cause if isinstance(error, LocalEntryNotFoundError) and isinstance(cause, HfHubHTTPError) else error


def is_of_client(error: BaseException) -> bool:
    """Whether it is an error of the HTTP client, which huggingface-hub does not wrap: httpx2, httpx or requests."""
    return type(error).__module__.startswith(("httpx", "requests"))
