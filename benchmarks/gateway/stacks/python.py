"""No proxy, what the mock and the client take by themselves; and two proxies in Python: bytes passed on
unread (`relay_proxy/main.py`), aiohttp's server and client (`aiohttp_proxy/main.py`).
"""

from __future__ import annotations

from pathlib import Path

from stacks import BEARER, KEY, PYTHON, Proxy, Room, free_port, wait_for


def direct(room: Room, upstream_port: int) -> Proxy:
    return Proxy(None, upstream_port)


def relay(room: Room, upstream_port: int) -> Proxy:
    return _start(room, "relay_proxy", upstream_port)


def aiohttp(room: Room, upstream_port: int) -> Proxy:
    return _start(room, "aiohttp_proxy", upstream_port, KEY)


def _start(room: Room, program: str, upstream_port: int, *key: str) -> Proxy:
    port = free_port()
    file = Path(__file__).parent / program / "main.py"
    child = room.start([PYTHON, str(file), str(port), str(upstream_port), *key])
    wait_for(port, child, room)
    return Proxy(child.pid, port, BEARER if key else "")
