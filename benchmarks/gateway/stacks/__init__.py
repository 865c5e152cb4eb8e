"""The proxies under comparison, one small file each.

A stack says why it cannot run here (`missing`), and starts: `start(room, upstream_port)` gives a `Proxy`. A
`Room` is a scratch folder, the children that were started from it, and the core that they are pinned to.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KEY = "sk-bench-0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Proxy:
    pid: int | None
    """The root of the process tree whose CPU time and memory count; None: there is none."""
    port: int
    headers: str = ""
    """Head lines that the client adds, each with CRLF."""
    is_exact: bool = True
    """Passes bodies on byte for byte; without it only the text of the answers is compared."""
    slowness: int = 1
    """Loads are divided by it, so that a slow stack does not take the evening."""


@dataclass(frozen=True, slots=True)
class Stack:
    name: str
    start: Callable[[Room, int], Proxy]
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run on this machine."""


@dataclass(slots=True)
class Room:
    folder: Path
    core: int | None = 0
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        pinned = ["taskset", "-c", str(self.core)] if self.core is not None else []
        with (self.folder / "log").open("ab") as log:
            child = subprocess.Popen(
                [*pinned, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **(env or {})},
            )
        self.children.append(child)
        return child

    def end(self) -> None:
        """Only what was started here: asked to stop, and killed if it does not."""
        for child in self.children:
            child.terminate()
        for child in self.children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
        return port


def wait_for(port: int, child: subprocess.Popen[bytes], room: Room, seconds: float = 30) -> None:
    """Until somebody listens there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if child.poll() is not None:
            raise RuntimeError(f"{child.args!r} ended with {child.returncode}:\n{room.log()}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"nobody listens at {port} after {seconds:.0f} s:\n{room.log()}")


def program_missing(name: str, package: str) -> str | None:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return None if found else f"apt install {package}"


PYTHON = sys.executable
BEARER = f"Authorization: Bearer {KEY}\r\n"
