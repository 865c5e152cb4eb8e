"""A test that hangs fails with its name and with where it waits, and the tests after it run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HANGS = """
import asyncio, time
from tests import time_limit

async def endless():
    await asyncio.Event().wait()
    yield

async def reader():
    async for _ in endless():
        pass

def test_waits():
    asyncio.run(reader())

def test_cannot_be_stopped():
    time_limit.grace_s = 0.2
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def test_after_it():
    pass
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hangs")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_hangs.py").write_text(HANGS)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"FIRESTEEL_TEST_LIMIT_S": "2", "PYTHONPATH": str(Path(__file__).parents[1]), "COLUMNS": "200"}
    argv = [sys.executable, "-m", "pytest", "-n", "1", "-p", "tests.time_limit", "-p", "no:asyncio", "-rA"]
    ran = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=folder, check=False)
    return ran.stdout + ran.stderr


def test_a_failure_names_what_every_task_waits_for(output: str) -> None:
    assert (
        "FAILED test_hangs.py::test_waits - Failed: test_hangs.py::test_waits: the test did not end" in output
    )
    assert "await asyncio.Event().wait()" in output, "through the generator"
    assert "in test_waits" in output, "and the threads"


def test_one_that_catches_the_failure_ends_its_worker_by_name(output: str) -> None:
    assert "crashed while running 'test_hangs.py::test_cannot_be_stopped'" in output
    assert "test_hangs.py::test_cannot_be_stopped: the test did not end within 2 s, nor when" in output
    assert "PASSED test_hangs.py::test_after_it" in output
