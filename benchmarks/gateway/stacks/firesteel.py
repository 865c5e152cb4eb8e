"""Ours, as users start it: `firesteel serve -f FILE`, a key by `serve key add`, meters and log on."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterable

from stacks import PYTHON, Proxy, Room, free_port, wait_for

COMMAND = (PYTHON, "-m", "firesteel")  # as the `firesteel` script does


def missing() -> str | None:
    found = importlib.util.find_spec("firesteel")
    return None if found else "run with the Python that firesteel is installed in"


def missing_before() -> str | None:
    return None if os.environ.get("FIRESTEEL_BEFORE") else "FIRESTEEL_BEFORE is not set"


def start(room: Room, upstream_port: int, **more: str) -> Proxy:
    env = {**os.environ, "FIRESTEEL_HOME": str(room.folder / "home"), **more}
    add = [*COMMAND, "serve", "key", "add", "bench"]
    made = subprocess.run(add, env=env, capture_output=True, text=True, check=True)
    child, port = serve(room, ["bench"], upstream_port, **more)
    return Proxy(child.pid, port, f"Authorization: Bearer {made.stdout.strip()}\r\n")


def start_before(room: Room, upstream_port: int) -> Proxy:
    """Another checkout of ours, to compare a change with what was before; FIRESTEEL_BEFORE is its `src`."""
    return start(room, upstream_port, PYTHONPATH=os.environ["FIRESTEEL_BEFORE"])


def serve(
    room: Room, models: Iterable[str], upstream_port: int, **env: str
) -> tuple[subprocess.Popen[bytes], int]:
    """A gateway in a home of its own, when it listens, and its port."""
    port, file = free_port(), room.folder / "firesteel.yaml"
    entries = {name: {"url": f"http://127.0.0.1:{upstream_port}"} for name in models}
    file.write_text(json.dumps({"listen": f"127.0.0.1:{port}", "models": entries}))  # JSON is YAML
    words = [*COMMAND, "serve", "-f", str(file)]
    child = room.start(words, {"FIRESTEEL_HOME": str(room.folder / "home"), **env})
    wait_for(port, child, room)
    return child, port
