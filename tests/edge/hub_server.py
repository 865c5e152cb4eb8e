"""A small Hub server on loopback: the endpoints that huggingface_hub requests, with failures on demand.

Large files (`large`) are redirected to a store at another port, as the Hub does. The log has every request
and the number of bytes sent, so that a test can tell a resumed fetch from a second one.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.http_thread import QuietHandler, serving_http

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIGNED = "X-Signature=do-not-show-me"
_PIECE = 64 * 1024


@dataclass(slots=True)
class Trouble:
    """What goes wrong when a file is sent."""

    breaks_after: int | None = None
    """The connection is closed after so many bytes of a response."""
    times: int = 1
    """How often that happens."""
    bytes_per_s: int | None = None
    instead: bytes | None = None
    """Other bytes than listed, once or every time."""
    every_time: bool = False
    no_ranges: bool = False


@dataclass(slots=True)
class Repository:
    files: dict[str, bytes]
    commit: str = COMMIT
    large: tuple[str, ...] = (".safetensors", ".gguf", ".bin", ".pth")
    """Suffixes of the files in the store."""
    gated: bool = False
    readers: tuple[str, ...] = ()
    """Tokens that may read it when it is gated."""
    trouble: dict[str, Trouble] = field(default_factory=dict)

    def is_large(self, path: str) -> bool:
        return path.endswith(self.large)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    method: str
    path: str
    range: str | None
    token: str | None
    at_store: bool


class Hub:
    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.log: list[LoggedRequest] = []
        self.sent: dict[str, int] = {}
        """Bytes of content sent, by path in the repository."""
        self.sending = 0
        """Responses in progress."""
        self.page_files = 1000
        self.lock = threading.Lock()
        self.url = self.store_url = ""

    def add(self, name: str, files: dict[str, bytes], **more: Any) -> Repository:
        self.repositories[name] = Repository(files, **more)
        return self.repositories[name]

    def forget(self) -> None:
        with self.lock:
            self.log.clear()
            self.sent.clear()

    @property
    def sent_bytes(self) -> int:
        with self.lock:
            return sum(self.sent.values())

    def environ(self, **more: str) -> dict[str, str]:
        return {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", **more}


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    front_handler = type("Handler", (_Handler,), {"hub": hub, "at_store": False})
    store_handler = type("Handler", (_Handler,), {"hub": hub, "at_store": True})
    with serving_http(front_handler) as front, serving_http(store_handler) as back:
        hub.url, hub.store_url = front, back
        yield hub


class _Handler(QuietHandler):
    hub: Hub
    at_store: bool
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        with self.hub.lock:
            self.hub.log.append(
                LoggedRequest(self.command, path, self.headers.get("Range"), token, self.at_store)
            )
            self.hub.sending += 1
        try:
            self._route(path, token)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with self.hub.lock:
                self.hub.sending -= 1

    def _route(self, path: str, token: str | None) -> None:
        parts = path.strip("/").split("/")
        if self.at_store:
            return self._content("/".join(parts[:2]), "/".join(parts[2:]))
        if parts[:2] == ["api", "models"] and len(parts) > 5:
            return self._api("/".join(parts[2:4]), parts[4], "/".join(parts[5:]))
        if len(parts) > 4 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]), token)
        return self._refuse(404, "EntryNotFound")

    def _api(self, name: str, kind: str, revision: str) -> None:
        repository = self._find(name, revision)
        if repository is None:
            return None
        if kind == "revision":
            return self._json(
                {"id": name, "sha": repository.commit, "siblings": [], "gated": repository.gated}
            )
        rows = [_row(repository, path) for path in sorted(repository.files)]
        start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        page = rows[start : start + self.hub.page_files]
        more = start + len(page)
        link = f'<{self.hub.url}{urlsplit(self.path).path}?recursive=True&cursor={more}>; rel="next"'
        return self._json(page, {"Link": link} if more < len(rows) else {})

    def _find(self, name: str, revision: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._refuse(401, "RepoNotFound")
        elif revision not in ("main", repository.commit):
            self._refuse(404, "RevisionNotFound")
        else:
            return repository
        return None

    def _resolve(self, name: str, revision: str, path: str, token: str | None) -> None:
        repository = self._find(name, revision)
        if repository is None:
            return None
        if repository.gated and token not in repository.readers:
            return self._refuse(403 if token else 401, "GatedRepo")
        if path not in repository.files:
            return self._refuse(404, "EntryNotFound")
        content = repository.files[path]
        if not repository.is_large(path):
            return self._content(name, path, {"X-Repo-Commit": repository.commit})
        headers = {
            "Location": f"{self.hub.store_url}/{name}/{quote(path)}?{SIGNED}",
            "X-Repo-Commit": repository.commit,
            "X-Linked-Etag": f'"{sha256(content)}"',
            "X-Linked-Size": str(len(content)),
        }
        return self._head(302, headers, 0)

    def _content(self, name: str, path: str, more: dict[str, str] | None = None) -> None:
        repository = self.hub.repositories[name]
        trouble = repository.trouble.get(path, Trouble())
        content = repository.files[path]
        headers = {**(more or {}), "ETag": f'"{git_oid(content)}"', "Accept-Ranges": "bytes"}
        if trouble.instead is not None and self.command == "GET":
            content = trouble.instead
            if not trouble.every_time:
                trouble.instead = None
        start, end = (0, None) if trouble.no_ranges else self._range()
        piece = content[start : len(content) if end is None else end + 1]
        if start or end is not None:
            headers["Content-Range"] = f"bytes {start}-{start + len(piece) - 1}/{len(content)}"
        self._head(206 if start or end is not None else 200, headers, len(piece))
        if self.command == "GET":
            self._send(path, piece, trouble)

    def _range(self) -> tuple[int, int | None]:
        """The first byte that is asked for, and the last; None: all that follow."""
        start, _, end = (self.headers.get("Range") or "").removeprefix("bytes=").partition("-")
        return int(start or 0), int(end) if end else None

    def _send(self, path: str, content: bytes, trouble: Trouble) -> None:
        end = len(content)
        if trouble.breaks_after is not None and trouble.times > 0:
            trouble.times -= 1
            end = min(end, trouble.breaks_after)
            self.close_connection = True
        for start in range(0, end, _PIECE):
            piece = content[start : min(start + _PIECE, end)]
            if trouble.bytes_per_s:
                time.sleep(len(piece) / trouble.bytes_per_s)
            self.wfile.write(piece)
            with self.hub.lock:
                self.hub.sent[path] = self.hub.sent.get(path, 0) + len(piece)

    def _json(self, value: object, more: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self._head(200, {"Content-Type": "application/json", **(more or {})}, len(body))
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._head(status, {"X-Error-Code": code, "X-Error-Message": code}, 0)

    def _head(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _row(repository: Repository, path: str) -> dict[str, object]:
    content = repository.files[path]
    row: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
    if repository.is_large(path):
        row["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
    return row
