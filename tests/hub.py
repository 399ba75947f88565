"""A hub on this machine: the part of the Hugging Face hub's protocol by which models are looked up and downloaded."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The running server.

    Attributes:
        models: the folder of each model by its name ORG/NAME.
        faults: statuses with which it answers the next requests of files whose name contains the key.
        refusals: status and headers with which it answers the next requests about a model or data set, by its name.
        requests: the files that were asked for by GET, in order.
    """

    def __init__(self, models: dict[str, Path]):
        self.models, self.faults, self.requests = models, dict[str, list[int]](), list[str]()
        self.refusals = dict[str, list[tuple[int, dict[str, str]]]]()
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def environment(self, cache: Path) -> dict[str, str]:
        """Variables by which another process finds it."""
        offline = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        return {"HF_ENDPOINT": self.address, "HF_HUB_CACHE": str(cache), **offline}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if refusals := next((each for name, each in self.hub.refusals.items() if f"/{name}" in path and each), None):
            status, headers = refusals.pop(0)
            self.reply(status, b"{}", headers)
            return
        for name, folder in self.hub.models.items():
            if path.startswith(f"/api/models/{name}"):
                about = _about(name, folder)
                tree = [
                    {"type": "file", "path": each["rfilename"], "size": each["size"], "oid": COMMIT}
                    for each in about["siblings"]
                ]
                self.reply(200, json.dumps(tree if "/tree/" in path else about).encode())
                return
            if path.startswith(f"/{name}/resolve/"):
                self.file(folder / path.split("/", 5)[5])
                return
        self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815 (the base class's name)

    def file(self, file: Path) -> None:
        statuses = next((each for key, each in self.hub.faults.items() if key in file.name and each), None)
        if statuses:
            self.reply(statuses.pop(0), b"{}", {"Retry-After": "0"})
            return
        if not file.is_file():
            self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        data, status, headers = file.read_bytes(), 200, {"ETag": f'"{_sha256(file)}"', "X-Repo-Commit": COMMIT}
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            end = min(int(last) + 1 if last else len(data), len(data))
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
            data, status = data[int(first) : end], 206
        if self.command == "GET":
            self.hub.requests.append(file.name)
        self.reply(status, data, headers)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Accept-Ranges": "bytes", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(OSError):  # clients hang up
                self.wfile.write(body)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


promised = _sha256
"""The SHA-256 of a large file, of which the hub keeps a record."""


def _about(name: str, folder: Path) -> dict[str, Any]:
    siblings = []
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        about = {"rfilename": file.relative_to(folder).as_posix(), "size": file.stat().st_size}
        if file.suffix == ".safetensors":
            about["lfs"] = {"sha256": promised(file), "size": file.stat().st_size, "pointerSize": 134}
        siblings.append(about)
    return {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}


@contextlib.contextmanager
def running(models: dict[str, Path], cache: Path) -> Iterator[Hub]:
    """Starts the server, and lets this process find it."""
    from huggingface_hub import constants

    hub = Hub(models)
    template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    changed = {"ENDPOINT": hub.address, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_CACHE": str(cache)}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**changed, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
            patch.setattr(constants, key, value)
        yield hub
    hub.server.shutdown()
    hub.server.server_close()
