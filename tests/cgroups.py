"""A memory cgroup of a test's own: a small machine inside this one, whose memory can really run out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cgroup:
    folder: Path
    is_v2: bool

    @property
    def processes(self) -> Path:
        """A process whose number is written to it is in the cgroup, with all that it starts."""
        return self.folder / "cgroup.procs"

    @property
    def used_bytes(self) -> int:
        name = "memory.current" if self.is_v2 else "memory.usage_in_bytes"
        return int((self.folder / name).read_text())

    @property
    def oom_kills(self) -> int:
        text = (self.folder / ("memory.events" if self.is_v2 else "memory.oom_control")).read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Cgroup]:
    """With a limit and without swap. Where there is none to be had, the test skips."""
    is_v2 = (ROOT / "cgroup.controllers").exists()
    parent = ROOT if is_v2 else ROOT / "memory"
    folder = parent / f"firesteel-test-{os.getpid()}"
    try:
        if is_v2:
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
        (folder / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
    except OSError as error:
        assert os.environ.get("CI") != "true", f"scripts/test mounts cgroups in CI: {error}"
        pytest.skip(f"needs root and a memory cgroup: {error}")
    with suppress(OSError):
        swap = "memory.swap.max" if is_v2 else "memory.memsw.limit_in_bytes"
        (folder / swap).write_text("0" if is_v2 else str(limit_bytes))
    try:
        yield Cgroup(folder, is_v2)
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.05)
