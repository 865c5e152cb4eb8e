"""Ours, as users start it: `firesteel serve -f FILE`, a key by `firesteel key add`, meters and log on."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess

from stacks import PYTHON, Proxy, Room, free_port, wait_for

name = "firesteel"


def missing() -> str | None:
    return (
        None
        if importlib.util.find_spec("firesteel")
        else "run with the Python that firesteel is installed in"
    )


def start(room: Room, upstream_port: int) -> Proxy:
    return start_from(room, upstream_port, None)


def start_from(room: Room, upstream_port: int, source: str | None) -> Proxy:
    """`source`: the `src` folder of another checkout."""
    port, file, home = free_port(), room.folder / "firesteel.yaml", room.folder / "home"
    entry = {"url": f"http://127.0.0.1:{upstream_port}"}
    file.write_text(json.dumps({"listen": f"127.0.0.1:{port}", "models": {"bench": entry}}))  # JSON is YAML
    env = {"FIRESTEEL_HOME": str(home)} | ({"PYTHONPATH": source} if source else {})
    words = [PYTHON, "-m", "firesteel"]  # as the `firesteel` script does
    made = subprocess.run(
        [*words, "key", "add", "bench"], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    child = room.start([*words, "serve", "-f", str(file)], env)
    wait_for(port, child, room)
    return Proxy(child.pid, port, f"Authorization: Bearer {made.stdout.strip()}\r\n")
