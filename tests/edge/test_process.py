"""Processes that outlive their parent."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from firesteel.edge.host import process


def test_a_detached_process_inherits_no_open_files(tmp_path: Path) -> None:
    """Whoever reads a pipe to its end must not wait for a supervisor."""
    reads, writes = os.pipe()
    os.set_inheritable(writes, True)
    ready = tmp_path / "ready"
    code = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    number = process.start_detached([sys.executable, "-c", code], tmp_path / "log", os.environ)
    try:
        os.close(writes)
        for _ in range(200):
            if ready.exists():
                break
            time.sleep(0.05)
        assert ready.exists(), (tmp_path / "log").read_text()
        files = {entry.name: str(entry.readlink()) for entry in Path(f"/proc/{number}/fd").iterdir()}
        assert files == {"0": "/dev/null", "1": str(tmp_path / "log"), "2": str(tmp_path / "log")}
        os.set_blocking(reads, False)
        assert os.read(reads, 1) == b"", "nobody holds the other end"
    finally:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        os.close(reads)
