"""The examples run as they stand, from a home with nothing in it but what was pulled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.edge.files.home import Home
from firesteel.run.service import all_services

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.real


def test_the_journey(engine_home: Home, free_port: int) -> None:
    env = {
        **os.environ,
        "FIRESTEEL": f"{sys.executable} -m firesteel",
        "FIRESTEEL_HOME": str(engine_home.root),
        "PORT": str(free_port),
    }
    done = subprocess.run(
        ["sh", str(ROOT / "examples/journey.sh")],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for seen in (
        "vllm-entrypoint-twice",
        '"content":',
        "smollm2  ready",
        "kind: Deployment",
        "smollm2 has stopped",
    ):
        assert seen in done.stdout + done.stderr, seen
    assert all_services(engine_home) == []
