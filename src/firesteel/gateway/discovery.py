"""What runs already, and what it is.

Our own services, from the files under FIRESTEEL_HOME/services: is one what we would start, and what does it
hold? A server that is not ours is queried over HTTP: is it up, and which APIs does it have?

Imports little: the gateway checks once a second.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal
from urllib.parse import urlsplit

from firesteel.edge.home import Home, read_state, write_text
from firesteel.edge.measured_memory import read_measured_memory
from firesteel.gateway.interfaces import ServerApiName
from firesteel.gateway.service_config import RunningModel
from firesteel.run.service import Service, ServiceSpec, api_key

Basis = Literal["host", "process", "planned"]


def identity(launch: str, url: str, is_guarded_by_key: bool) -> str:
    """Distinguishes launches: what is started, where, and who may reach it. `url` is empty where the file has
    no port: the model takes one when it loads, and any will do."""
    return _digest((launch, url, is_guarded_by_key))


def is_identity_of(wanted: str, spec: ServiceSpec) -> bool:
    """Whether that is what should run."""
    return wanted in (identity(spec.launch, url, spec.is_guarded_by_key) for url in ("", spec.url))


def outside_identity(urls: Iterable[str], model: str | None, key: str | None) -> str:
    return _digest((list(urls), model, key))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def running_model(home: Home, service: Service) -> RunningModel:
    """Where a ready service answers, and what it holds."""
    held_bytes, basis = measured(home, service)
    return RunningModel(service.spec.url, held_bytes, basis, api_key(service.spec))


def measured(home: Home, service: Service) -> tuple[int, Basis]:
    """Memory that its start took, as `measured_memory.json` has it.

    Of a container: what the host had less afterwards, since no process shows what CUDA took. Of a child
    process: its processes' share of all pages.
    """
    spec = service.spec
    if known := read_measured_memory(home).get(spec.launch):
        return known.process_bytes, "host" if spec.stop else "process"
    return spec.expected_bytes, "planned"


class OwnServices:
    """What gateways of this home have started, by name and identity. Kept in a file, so that after a `kill
    -9` the next gateway recognizes its models and leaves alone what was started by hand."""

    def __init__(self, home: Home) -> None:
        self._path = home.root / "gateway" / "started.json"
        self._identities = read_state(self._path, dict[str, str]) or {}

    def __contains__(self, name: str) -> bool:
        return name in self._identities

    def add(self, name: str, identity: str) -> None:
        self._write({**self._identities, name: identity})

    def discard(self, name: str) -> None:
        self._write({other: identity for other, identity in self._identities.items() if other != name})

    def is_mine(self, name: str, identity: str) -> bool:
        return self._identities.get(name) == identity

    def _write(self, identities: dict[str, str]) -> None:
        if identities != self._identities:
            self._identities = identities
            write_text(self._path, json.dumps(identities))


_NO_SUCH_PATH = (404, 405, 501)
_REJECTED = (200, 400, 415, 422, 500)
"""How a server answers `{}` on a path that it has."""
_ALIVE = (200, 401, 403)
"""A server that asks for a key is up."""
_TIMEOUT_S = 3.0
_PATHS: dict[ServerApiName, str] = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}


async def is_answering(url: str) -> bool:
    """Try `/health`, and `/v1/models` if the server has no `/health`. No key is sent."""
    status = await _status(f"{url}/health")
    if status in _NO_SUCH_PATH:
        status = await _status(f"{url}/v1/models")
    return status in _ALIVE


async def find_apis(url: str, headers: bytes = b"") -> tuple[ServerApiName, ...]:
    """Each is sent an empty object, which runs no model. Empty if the server has all of them, none, or does
    not tell: then everything is forwarded as it is."""
    headers += b"Content-Type: application/json\r\nContent-Length: 2\r\n"
    statuses = await asyncio.gather(
        *(_status(f"{url}{path}", b"POST", headers, b"{}") for path in _PATHS.values())
    )
    if any(status not in (*_NO_SUCH_PATH, *_REJECTED) for status in statuses):
        return ()
    found = tuple(api for api, status in zip(_PATHS, statuses, strict=True) if status in _REJECTED)
    return found if len(found) < len(_PATHS) else ()


_CONTEXT_KEYS = ("max_model_len", "context_length", "context_window")
"""vLLM, SGLang and this gateway; OpenRouter and LM Studio; others."""
_MAX_BODY_BYTES = 256 * 1024


async def find_context(url: str, model: str, headers: bytes = b"") -> int | None:
    """What a server says of its context: in its list of models, or llama.cpp in `/props`. None: nothing."""
    listed = await _json(f"{url}/v1/models", headers)
    rows = [row for row in _member(listed, "data", list) or () if isinstance(row, dict)]
    named = [row for row in rows if row.get("id") == model] or (rows if len(rows) == 1 else [])
    for row in named:
        found = [row.get(key) for key in _CONTEXT_KEYS]
        found.append(_member(row.get("meta"), "n_ctx", int))
        if context := next((value for value in found if type(value) is int and value > 0), None):
            return context
    settings = _member(await _json(f"{url}/props", headers), "default_generation_settings", dict)
    context = _member(settings, "n_ctx", int)
    return context if context and context > 0 else None


def _member(value: Any, name: str, kind: type) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    return found if type(found) is kind else None


async def _json(url: str, headers: bytes) -> Any:
    """None: there is none."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            status, body = await _send(url, b"GET", headers, b"", is_read=True)
            return json.loads(body) if status == 200 else None
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None


async def _status(url: str, method: bytes = b"GET", headers: bytes = b"", body: bytes = b"") -> int | None:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return (await _send(url, method, headers, body))[0]
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None


async def _send(
    url: str, method: bytes, headers: bytes, body: bytes, *, is_read: bool = False
) -> tuple[int, bytes]:
    """Status, and the body if it is read."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=is_tls or None, limit=8192)
    try:
        head = f"{parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n".encode("ascii")
        writer.write(b"%b %b%b\r\n%b" % (method, head, headers, body))
        line = (await reader.readuntil(b"\r\n")).split(b" ", 2)
        status = int(line[1]) if len(line) > 1 and line[0].startswith(b"HTTP/1.") else 0
        if not is_read:
            return status, b""
        await reader.readuntil(b"\r\n\r\n")
        parts_read = bytearray()
        while len(parts_read) < _MAX_BODY_BYTES and (piece := await reader.read(_MAX_BODY_BYTES)):
            parts_read += piece
        return status, bytes(parts_read)
    finally:
        writer.close()
