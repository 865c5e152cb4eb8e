"""Another checkout of ours, to compare a change with what was before; FIRESTEEL_BEFORE is its `src`."""

from __future__ import annotations

import os

from stacks import Proxy, Room
from stacks.firesteel import start_from

name = "before"


def missing() -> str | None:
    return None if os.environ.get("FIRESTEEL_BEFORE") else "FIRESTEEL_BEFORE is not set"


def start(room: Room, upstream_port: int) -> Proxy:
    return start_from(room, upstream_port, os.environ["FIRESTEEL_BEFORE"])
