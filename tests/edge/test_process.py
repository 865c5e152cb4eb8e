"""Processes that outlive whoever started them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from firesteel.edge.host import process


def test_a_detached_process_gets_nothing_of_ours(tmp_path: Path) -> None:
    """Whoever reads from a pipe until its end must not wait for a keeper."""
    reads, writes = os.pipe()
    os.set_inheritable(writes, True)
    ready = tmp_path / "ready"
    code = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    number = process.start_detached([sys.executable, "-c", code], tmp_path / "log")
    try:
        os.close(writes)
        for _ in range(200):
            if ready.exists():
                break
            time.sleep(0.05)
        assert ready.exists(), (tmp_path / "log").read_text()
        held = {each.name: str(each.readlink()) for each in Path(f"/proc/{number}/fd").iterdir()}
        assert held == {"0": "/dev/null", "1": str(tmp_path / "log"), "2": str(tmp_path / "log")}
        os.set_blocking(reads, False)
        assert os.read(reads, 1) == b"", "nobody holds the other end"
    finally:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        os.close(reads)
