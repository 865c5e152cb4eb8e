"""A small Hub on loopback that takes uploads: what huggingface_hub asks of it, and what it has received."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class UploadHub:
    url: str = ""
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files, by their digest."""
    sent: list[str] = field(default_factory=list)
    """Digests of the large files that were sent, in order."""
    fails_commits: int = 0
    requests: list[str] = field(default_factory=list)


def _mode(path: str) -> dict[str, Any]:
    large = path.endswith(".safetensors")
    return {"uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": None}


@contextmanager
def upload_hub() -> Iterator[UploadHub]:
    hub = UploadHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _answer(self, value: Any, status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            hub.requests.append(f"GET {self.path}")
            self._answer({"id": "org/name", "sha": COMMIT, "siblings": [], "private": True})

        do_HEAD = do_GET

        def do_PUT(self) -> None:
            hub.requests.append(f"PUT {self.path}")
            body = self._body()
            digest = self.path.rpartition("/")[2]
            assert hashlib.sha256(body).hexdigest() == digest
            hub.stored[digest] = body
            hub.sent.append(digest)
            self._answer({})

        def do_POST(self) -> None:
            hub.requests.append(f"POST {self.path}")
            body = self._body()
            if self.path == "/api/repos/create":
                hub.created.append(json.loads(body))
                self._answer({"url": f"{hub.url}/org/name", "id": "1"})
            elif "/preupload/" in self.path:
                files = json.loads(body)["files"]
                modes = [{"path": file["path"], **_mode(file["path"])} for file in files]
                self._answer({"files": modes, "commitOid": COMMIT})
            elif self.path.endswith("/objects/batch"):
                self._answer(
                    {"transfer": "basic", "objects": [self._object(o) for o in json.loads(body)["objects"]]}
                )
            elif "/commit/" in self.path:
                self._commit(body)
            else:
                self._answer({})

        def _object(self, wanted: dict[str, Any]) -> dict[str, Any]:
            if wanted["oid"] in hub.stored:
                return wanted
            return {**wanted, "actions": {"upload": {"href": f"{hub.url}/store/{wanted['oid']}"}}}

        def _commit(self, body: bytes) -> None:
            if hub.fails_commits:
                hub.fails_commits -= 1
                self._answer({"error": "not now"}, 403)
                return
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.stored[value["oid"]]
            self._answer(
                {"commitUrl": f"{hub.url}/org/name/commit/{COMMIT}", "commitOid": COMMIT, "success": True}
            )

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
