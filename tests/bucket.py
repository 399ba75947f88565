"""A bucket on this machine: gcp-storage-emulator behind a proxy that keeps the protocol's promises and breaks them.

The emulator ignores the condition `ifGenerationMatch`, on which TensorStore's format relies, and lacks `moveTo`.
"""

import contextlib
import http.client
import json
import logging
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

NAME = "jaxspec-tests"
"""Of the bucket."""

_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/(.+)")
_MOVE = re.compile(r"/storage/v1/b/([^/]+)/o/(.+)/moveTo/o/(.+)")


class Fault:
    """What happens to the next `times` requests whose method and path match: a status, or `cut` after half the body."""

    def __init__(self, pattern: str, what: int | str, times: int = 1):
        self.pattern, self.what, self.left = re.compile(pattern), what, times
        self.met = 0

    def meets(self, request: str) -> bool:
        if not self.left or not self.pattern.search(request):
            return False
        self.left, self.met = self.left - 1, self.met + 1
        return True


class Bucket:
    """The running servers. `faults` may be changed at any time; `requests` are those that came, as METHOD PATH."""

    def __init__(self, emulator: int):
        self.emulator, self.faults, self.requests = emulator, list[Fault](), list[str]()
        self.lock, self.uploads = threading.RLock(), dict[str, tuple[str, str, str | None]]()
        handler = type("Handler", (_Handler,), {"bucket": self})
        self.server = _Server(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which gcsfs and TensorStore find it."""
        return {
            "STORAGE_EMULATOR_HOST": self.address,
            "TENSORSTORE_GCS_HTTP_URL": self.address,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # it would look for a server of another protocol
            "NO_GCE_CHECK": "true",
            "FSSPEC_GCS_TOKEN": "anon",
        }

    def ask(self, method: str, path: str, body: bytes = b"", headers: Any = ()) -> tuple[int, dict[str, str], bytes]:
        """The emulator's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.emulator, timeout=60)
        try:
            connection.request(method, path, body or None, dict(headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def generation(self, bucket: str, name: str) -> str:
        """The generation of an object; `0` if there is none."""
        status, _, body = self.ask("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")
        return json.loads(body)["generation"] if status == 200 else "0"

    def names(self) -> list[str]:
        """All objects, sorted."""
        _, _, body = self.ask("GET", f"/storage/v1/b/{NAME}/o?maxResults=100000")
        return sorted(item["name"] for item in json.loads(body).get("items", []))

    def clear(self) -> None:
        for name in self.names():
            self.ask("DELETE", f"/storage/v1/b/{NAME}/o/{quote(name, safe='')}")
        self.faults.clear()
        self.requests.clear()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients hang up, and cut transfers are meant."""


class _Handler(BaseHTTPRequestHandler):
    bucket: Bucket
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{self.command} {unquote(self.path)}"
        with self.bucket.lock:
            self.bucket.requests.append(request)
            fault = next((each for each in self.bucket.faults if each.meets(request)), None)
        if fault is not None and isinstance(fault.what, int):
            message = json.dumps({"error": {"code": fault.what, "message": "a fault of the test"}}).encode()
            self.reply(fault.what, {"Content-Type": "application/json"}, message)
            return
        with self.bucket.lock if self.command != "GET" else contextlib.nullcontext():
            status, headers, content = self.served(body)
        self.reply(status, headers, content, cut=fault is not None)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer  # noqa: N815 (the base class's names)

    def served(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        headers = [(name, value) for name, value in self.headers.items() if name.lower() != "accept-encoding"]
        if found := _MOVE.fullmatch(parts.path):
            return self.moved(*found.groups())
        upload, about = query.get("upload_id"), None
        if upload is not None:  # the condition came with the first request of the upload
            about = self.bucket.uploads.get(upload)
        elif parts.path.startswith("/upload/"):
            name = query.get("name") or (
                json.loads(body).get("name") if query.get("uploadType") == "resumable" else None
            )
            name = name or _multipart_name(body)
            about = (parts.path.split("/b/")[1].split("/")[0], name, query.get("ifGenerationMatch"))
        elif self.command == "DELETE" and (found := _OBJECT.fullmatch(parts.path)):
            about = (found[1], unquote(found[2]), query.get("ifGenerationMatch"))
        if about is not None and about[2] is not None and self.bucket.generation(*about[:2]) != about[2]:
            return 412, {"Content-Type": "application/json"}, b'{"error": {"code": 412, "message": "conditionNotMet"}}'
        status, found, content = self.bucket.ask(self.command, self.path, body, headers)
        location = next((value for name, value in found.items() if name.lower() == "location"), "")
        if about is not None and "upload_id=" in location:
            self.bucket.uploads[parse_qs(urlsplit(location).query)["upload_id"][0]] = about
        return status, found, content

    def moved(self, bucket: str, source: str, to: str) -> tuple[int, dict[str, str], bytes]:
        status, headers, content = self.bucket.ask(
            "POST", f"/storage/v1/b/{bucket}/o/{source}/rewriteTo/b/{bucket}/o/{to}"
        )
        if status == 200:
            self.bucket.ask("DELETE", f"/storage/v1/b/{bucket}/o/{source}")
            content = json.dumps(json.loads(content)["resource"]).encode()
        return status, headers, content

    def reply(self, status: int, headers: dict[str, str], content: bytes, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True
            self.connection.close()


def _multipart_name(body: bytes) -> str:
    found = re.search(rb'"name":\s*"((?:[^"\\]|\\.)*)"', body)
    assert found is not None, body[:200]
    return json.loads(b'"' + found[1] + b'"')


@contextlib.contextmanager
def running() -> Iterator[Bucket]:
    """Starts both servers, with an empty bucket NAME."""
    from gcp_storage_emulator.server import create_server

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    emulator: Any = create_server("127.0.0.1", 0, in_memory=True, default_bucket=NAME)
    emulator.start()
    try:
        bucket = Bucket(emulator._api._httpd.server_port)
        yield bucket
        bucket.server.shutdown()
        bucket.server.server_close()
    finally:
        emulator.stop()
