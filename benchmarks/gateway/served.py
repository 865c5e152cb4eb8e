"""`firesteel serve` in a home of its own, with the engines and weights of another home."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class ServedGateway:
    """`tree`: the root of the sources that serve. `file` is written before `start`."""

    def __init__(self, folder: Path, pulled: Path, port: int, tree: Path = ROOT) -> None:
        self.home, self.file, self.log = folder / "home", folder / "service.yaml", folder / "serve.log"
        self.home.mkdir()
        for part in ("engines", "weights"):
            (self.home / part).symlink_to((pulled / part).resolve())
        self.url = f"http://127.0.0.1:{port}"
        self.env = {**os.environ, "FIRESTEEL_HOME": str(self.home), "PYTHONPATH": str(tree / "src")}
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)

    def start(self, output: int | None = None) -> None:
        """`output`: where it prints to, other than its log."""
        command = [sys.executable, "-m", "firesteel", "serve", "-f", str(self.file)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=output or log, stderr=subprocess.STDOUT, env=self.env
            )
        while not self.is_healthy():
            if self.process.poll() is not None:
                raise SystemExit(self.log.read_text())
            time.sleep(0.1)

    def is_healthy(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=10).close()
        except OSError:
            return False
        return True

    def close(self) -> int:
        """Return its exit code. What it left running is stopped, too."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=120)
        finally:
            down = [sys.executable, "-m", "firesteel", "down", "--all"]
            subprocess.run(down, env=self.env, capture_output=True, check=False)
