"""Bytes passed on unread by Python (`relay_proxy/main.py`)."""

from __future__ import annotations

from pathlib import Path

from stacks import PYTHON, Proxy, Room, free_port, wait_for

name = "relay"
PROGRAM = Path(__file__).parent / "relay_proxy" / "main.py"


def missing() -> str | None:
    return None


def start(room: Room, upstream_port: int) -> Proxy:
    port = free_port()
    child = room.start([PYTHON, str(PROGRAM), str(port), str(upstream_port)])
    wait_for(port, child, room)
    return Proxy(child.pid, port)
