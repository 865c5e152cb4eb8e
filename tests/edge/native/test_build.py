"""A build that is killed: nothing goes on compiling in a folder where the next build works."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from firesteel.edge.host.process import with_variable

BUILD = """
import asyncio, sys
from collections.abc import Callable
from pathlib import Path
from firesteel.edge.native.build import _follow

async def build():
    async for progress in _follow(Path("log"), tuple(sys.argv[1:])):
        pass

asyncio.run(build())
"""
NINJA_FILE = "rule wait\n  command = touch compiling && exec sleep 300\nbuild all: wait\n"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_no_compiler_outlives_a_build(end: signal.Signals, tmp_path: Path) -> None:
    if shutil.which("ninja") is None:
        assert os.environ.get("CI") != "true", "scripts/test installs it in CI"
        pytest.skip("needs ninja (Debian: ninja-build)")
    (tmp_path / "build.ninja").write_text(NINJA_FILE)
    mark = ("FIRESTEEL_TEST_BUILD", str(tmp_path))
    build = subprocess.Popen(
        [sys.executable, "-c", BUILD, "ninja", "-C", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, mark[0]: mark[1]},
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: (tmp_path / "compiling").exists())
    assert len(with_variable(*mark)) >= 3  # ours, ninja, its command

    build.send_signal(end)
    build.wait(60)

    wait_until(lambda: not with_variable(*mark))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
