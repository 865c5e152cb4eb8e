"""`up` on a machine of about one token a second: the real engine with a few percent of a core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from firesteel.edge.home import Home
from firesteel.run.service import load
from firesteel.units import GB

CPU = Path("/sys/fs/cgroup/cpu")
PERCENT = 4


@pytest.fixture
def slow_cpu() -> Iterator[Path]:
    """A cgroup with a quota; version 1, as the kernel of the machine where it was tried has it."""
    folder = CPU / f"firesteel-slow-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text(str(PERCENT * 1000))
    except OSError as error:
        pytest.skip(f"needs root and a cpu cgroup of version 1: {error}")
    yield folder
    for _ in range(200):
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)


def slow_down(home: Home, folder: Path, done: threading.Event) -> None:
    """Moves the engine into the cgroup once it listens."""
    while not done.wait(0.02):
        service = load(home, "smollm2")
        log = service.log.read_text(errors="replace") if service and service.log.exists() else ""
        if service and service.state and service.state.engine and "serving on" in log:
            (folder / "cgroup.procs").write_text(str(service.state.engine.number))
            return


def write_bandwidth(home: Home, bytes_per_s: float) -> None:
    """As if this host had been measured to be so slow."""
    boot, cores = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), len(os.sched_getaffinity(0))
    measured = {"boot": boot, "cores": cores, "bytes_per_s": bytes_per_s, "times": 5}
    (home.root / "bandwidth.json").write_text(json.dumps(measured))


@pytest.mark.slow
def test_it_comes_up_slowly_and_says_so(engine_home: Home, free_port: int, slow_cpu: Path) -> None:
    write_bandwidth(engine_home, 0.5 * GB)
    done = threading.Event()
    mover = threading.Thread(target=slow_down, args=(engine_home, slow_cpu, done))
    mover.start()
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "firesteel", "up", "smollm2", "--port", str(free_port)],
            capture_output=True,
            text=True,
            timeout=3600,
            env={**os.environ, "FIRESTEEL_HOME": str(engine_home.root)},
            check=False,
        )
    finally:
        done.set()
        mover.join()
    assert ran.returncode == 0, ran.stderr
    assert "about 1 tok/s" in ran.stderr and "this host may write only" in ran.stderr
