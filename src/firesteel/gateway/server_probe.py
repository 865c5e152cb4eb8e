"""Asks a server that is not ours: is it there, and which APIs does it have?

await is_answering("http://10.0.0.7:8000")   -> True
await find_apis("http://10.0.0.7:8000")      -> ("chat",)
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from firesteel.gateway.interfaces import ServerApiName

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


async def _status(url: str, method: bytes = b"GET", headers: bytes = b"", body: bytes = b"") -> int | None:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await _send(url, method, headers, body)
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None


async def _send(url: str, method: bytes, headers: bytes, body: bytes) -> int:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=is_tls or None, limit=8192)
    try:
        head = f"{parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n".encode("ascii")
        writer.write(b"%b %b%b\r\n%b" % (method, head, headers, body))
        line = (await reader.readuntil(b"\r\n")).split(b" ", 2)
        return int(line[1]) if len(line) > 1 and line[0].startswith(b"HTTP/1.") else 0
    finally:
        writer.close()
