"""A real gateway with a real engine in a small cgroup and on a small disk: both run full, and recover.

A webhook and a command hear of each problem once, and once of its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.home import Home
from firesteel.units import GIB, MIB
from tests.cgroups import Cgroup, memory_cgroup
from tests.conftest import run_firesteel
from tests.edge.sim.spark import free_port
from tests.http_thread import QuietHandler, serving_http

pytestmark = [pytest.mark.real, pytest.mark.slow]  # a disk is told after a minute, an end after another

_WAIT_S = 300
# Of 4 GiB the guard keeps 102 MiB free; the eater leaves enough for the OOM killer to stay away.
EATER = """
import sys, time
from firesteel.edge.host.memory import meminfo
held = []
while meminfo().available_bytes > int(sys.argv[1]):
    held.append(bytearray(b"x") * (8 << 20))
    time.sleep(0.05)
time.sleep(3600)
"""


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address, and what it has got. It refuses every first attempt: delivery is tried again."""
    got: list[dict[str, Any]] = []
    refused: set[bytes] = set()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_first = body not in refused
            refused.add(body)
            if not is_first:
                got.append(json.loads(body))
            self.send(status=503 if is_first else 204)

    with serving_http(Handler) as url:
        yield f"{url}/hook", got


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """An engine starts only where its log has space, 256 MiB."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=640m", "tmpfs", str(folder)]
    if (ran := subprocess.run(mount, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"needs root to mount a tmpfs: {ran.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def inside(cgroup: Cgroup, words: list[str], **more: Any) -> subprocess.Popen[bytes]:
    """It is in the cgroup before it takes its first byte."""
    return subprocess.Popen(["sh", "-c", f'echo $$ > {cgroup.processes} && exec "$@"', "sh", *words], **more)


def test_the_guard_and_a_full_disk_are_told_and_their_end(pulled: Home, tmp_path: Path) -> None:
    home, commanded = tmp_path / "home", tmp_path / "commanded"
    with webhook() as (address, posted), memory_cgroup(4 * GIB) as cgroup, small_disk(home):
        for part in (pulled.engines, pulled.weights):
            (home / part.name).symlink_to(part)
        file, port = tmp_path / "service.yaml", free_port()
        file.write_text(f"""\
listen: 127.0.0.1:{port}
models: {{small: {{recipe: smollm2, context: 1024, port: {free_port()}}}}}
alerts:
  webhook: {address}
  command: [sh, -c, 'cat >> {commanded} && echo >> {commanded}']
  disk: 128MiB
""")
        words = [sys.executable, "-m", "firesteel", "serve", "-f", str(file)]
        gateway = inside(cgroup, words, env={**os.environ, "FIRESTEEL_HOME": str(home)})
        eater = None
        url = f"http://127.0.0.1:{port}"

        def state() -> Any:
            try:
                with urllib.request.urlopen(f"{url}/api/state", timeout=30) as answer:
                    (model,) = json.load(answer)["models"]
                    return model
            except OSError:
                return None

        def load() -> None:
            order = urllib.request.Request(f"{url}/api/models/small/load", method="POST")
            urllib.request.urlopen(order, timeout=30).close()
            until(lambda: state()["phase"] == "ready")

        def told(kind: str, is_over: bool) -> list[dict[str, Any]]:
            expected = (kind, "resolved" if is_over else "firing")
            return [alert for alert in posted if (alert["kind"], alert["state"]) == expected]

        try:
            until(state)
            load()
            (home / "fill").write_bytes(bytes(560 * MIB))
            until(lambda: told("disk", is_over=False))
            eater = inside(cgroup, [sys.executable, "-c", EATER, str(80 * MIB)])
            until(lambda: told("guard", is_over=False))
            assert state()["phase"] == "off", "its memory is back"
            eater.kill()
            eater.wait()
            (home / "fill").unlink()
            load()
            until(lambda: told("disk", is_over=True) and told("guard", is_over=True))
            assert cgroup.oom_kills == 0, "the guard came first"
        finally:
            if eater is not None:
                eater.kill()
                eater.wait()
            gateway.send_signal(signal.SIGTERM)
            gateway.wait(timeout=_WAIT_S)
            run_firesteel(home, "down", "--all")
        assert sorted((alert["kind"], alert["state"]) for alert in posted) == [
            ("disk", "firing"), ("disk", "resolved"), ("guard", "firing"), ("guard", "resolved"),
        ], posted  # fmt: skip
        assert [json.loads(line) for line in commanded.read_text().splitlines()] == posted
        assert "the memory guard stopped it" in told("guard", is_over=False)[0]["text"]
