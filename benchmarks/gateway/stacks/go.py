"""Go's own reverse proxy (`go_proxy/main.go`) on one thread of Go code: what llama-swap is made of."""

from __future__ import annotations

import subprocess
from pathlib import Path

from stacks import BEARER, KEY, Proxy, Room, free_port, program_missing, wait_for

SOURCE = Path(__file__).parent / "go_proxy" / "main.go"


def missing() -> str | None:
    return program_missing("go", "golang-go")


def start(room: Room, upstream_port: int) -> Proxy:
    port, program = free_port(), room.folder / "go-proxy"
    env = {"GO111MODULE": "off", "GOCACHE": str(room.folder / "go-cache"), "GOFLAGS": "", "GOMAXPROCS": "1"}
    build = room.start(["go", "build", "-o", str(program), str(SOURCE)], env)
    if build.wait(180):
        raise subprocess.SubprocessError(f"go build failed:\n{room.log()}")
    words = [str(program), f"127.0.0.1:{port}", f"http://127.0.0.1:{upstream_port}", KEY]
    child = room.start(words, env)
    wait_for(port, child, room)
    return Proxy(child.pid, port, BEARER)
