"""A disk that is really full: a small tmpfs as FIRESTEEL_HOME."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import run_firesteel

from firesteel.edge.files.home import write_text
from firesteel.errors import HostNotReady

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"not even root may mount here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_up_on_a_full_disk(small_disk: Path) -> None:
    ran = run_firesteel(small_disk, "up")
    assert ran.code == 5
    assert "needs 256.0 MiB, the disk under" in ran.err and "next: free some space" in ran.err


def test_a_disk_that_fills_while_writing(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * (8 * 2**20 - 8192))
    with pytest.raises(HostNotReady, match="is full"):
        write_text(small_disk / "state.json", "x" * 2**20)
    assert not (small_disk / "state.json").exists()
