"""aiohttp's server and client (`aiohttp_proxy/main.py`)."""

from __future__ import annotations

from pathlib import Path

from stacks import BEARER, KEY, PYTHON, Proxy, Room, free_port, wait_for

name = "aiohttp"
PROGRAM = Path(__file__).parent / "aiohttp_proxy" / "main.py"


def missing() -> str | None:
    return None


def start(room: Room, upstream_port: int) -> Proxy:
    port = free_port()
    child = room.start([PYTHON, str(PROGRAM), str(port), str(upstream_port), KEY])
    wait_for(port, child, room)
    return Proxy(child.pid, port, BEARER)
