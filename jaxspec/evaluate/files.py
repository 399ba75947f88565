"""Files of questions, here or on the hub: JSON lines, a JSON list, either of them gzipped, or Parquet."""

import gzip
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.builtin import locate_prompts

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
_HUB = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:/(.+))?")


def records(prompts: str | Path) -> Iterator[tuple[str, Any]]:
    """Yields (place in the file, JSON value) of every question in a file.

    Args:
        prompts: a path; `builtin`; or a hub id OWNER/NAME, with /FILE if the data set has several suitable files.

    Raises:
        ValueError: the file cannot be read, or a line is not JSON; the message names the line.
    """
    path = locate(prompts)
    if path.suffix == ".parquet":
        yield from ((f"{prompts}, row {number}", row) for number, row in enumerate(_parquet(path, prompts), 1))
        return
    text = _text(path, prompts)
    if text.lstrip()[:1] == "[" and ".jsonl" not in path.suffixes:
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise ValueError(f"the prompt file {prompts} is not JSON ({error})") from error
        yield from ((f"{prompts}, entry {number}", entry) for number, entry in enumerate(listed, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would also split inside JSON strings
        if line.strip():
            try:
                yield f"{prompts}, line {number}", json.loads(line)
            except ValueError as error:
                raise ValueError(f"{prompts}, line {number}: not JSON ({error})") from error


def locate(prompts: str | Path) -> Path:
    """The path of the file: the argument if it exists, otherwise the downloaded file of the hub."""
    path = locate_prompts(prompts)
    named = _HUB.fullmatch(str(prompts))
    return path if path.exists() or named is None or path.parent.is_dir() else fetch(*named.groups())


def fetch(name: str, file: str | None = None) -> Path:
    """Downloads a file of a data set on the hub to huggingface-hub's cache.

    Args:
        file: its path in the data set; None: the only suitable file, or the only one of the test split.

    Raises:
        ValueError: no such data set or file, no network, or several suitable files; the message lists them.
    """
    from httpx2 import TransportError  # huggingface-hub uses httpx2, and does not wrap all of its errors
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(hf_hub_download(name, file or _choose(name, HfApi()), repo_type="dataset"))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError, TransportError) as error:
        raise ValueError(
            f"{name} is not a local file, it is not in the hub's cache, and the hub cannot be reached; check the path, "
            "or the network and HF_HUB_OFFLINE"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ValueError(f"{name} cannot be fetched from the hub: {' '.join(str(error).split())[:200]}") from error


def _choose(name: str, hub: Any) -> str:
    """The only file of questions in a data set, or the only one of its test split."""
    there = [file for file in hub.list_repo_files(name, repo_type="dataset") if file.endswith(SUFFIXES)]
    found = [file for file in there if "test" in file] or there
    if len(found) != 1:
        offers = f"name one of {', '.join(sorted(found))} as {name}/FILE" if found else "it has none"
        raise ValueError(f"{name} is a data set with {len(found)} files that may hold questions; {offers}")
    return found[0]


def _text(path: Path, prompts: str | Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt file {prompts} is not UTF-8 text: {error}") from error
    except (OSError, EOFError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise ValueError(f"the prompt file {prompts} cannot be read: {reason}") from error


def _parquet(path: Path, prompts: str | Path) -> list[dict[str, Any]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError(f"{prompts} is a Parquet file, which needs pyarrow: pip install pyarrow") from error
    return parquet.read_table(path).to_pylist()
