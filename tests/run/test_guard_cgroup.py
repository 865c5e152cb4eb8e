"""A real process that really eats memory, in a real cgroup with a limit: who is first, guard or OOM killer?

The cgroup is the host: what it has left is written as a `/proc/meminfo`, and the guard looks at that. Beside
it the same eater runs without a guard, and the kernel does kill it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from firesteel.edge.host.kernel_log import KernelLog
from firesteel.edge.host.memory import sample
from firesteel.facts import KernelEvent
from firesteel.run.supervise.guard import GuardLimits, MemoryWatch
from firesteel.units import KIB, MIB

ROOT = Path("/sys/fs/cgroup")
LIMIT = 240 * MIB
FLOOR = 64 * MIB
LOOKS_A_SECOND = 10
GIVE_UP_S = 30
EATER = """
import sys, time
step, pause, held = int(sys.argv[1]), float(sys.argv[2]), []
sys.stdin.readline()
while True:
    held.append(bytearray(b"x") * step)
    time.sleep(pause)
"""


@dataclass(frozen=True)
class Cgroup:
    folder: Path
    is_v2: bool

    @property
    def used_bytes(self) -> int:
        name = "memory.current" if self.is_v2 else "memory.usage_in_bytes"
        return int((self.folder / name).read_text())

    @property
    def oom_kills(self) -> int:
        text = (self.folder / ("memory.events" if self.is_v2 else "memory.oom_control")).read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def write_meminfo(self, proc: Path) -> None:
        left = max(0, LIMIT - self.used_bytes) // KIB
        half = proc / ".meminfo"
        half.write_text(f"MemTotal: {LIMIT // KIB} kB\nMemFree: {left} kB\nMemAvailable: {left} kB\n")
        half.replace(proc / "meminfo")


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    """A memory cgroup of our own, with a limit and without swap."""
    is_v2 = (ROOT / "cgroup.controllers").exists()
    parent = ROOT if is_v2 else ROOT / "memory"
    folder = parent / f"firesteel-test-{os.getpid()}"
    try:
        if is_v2:
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
        (folder / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(LIMIT))
    except OSError as error:
        assert os.environ.get("CI") != "true", f"scripts/test mounts cgroups in CI: {error}"
        pytest.skip(f"needs root and a memory cgroup: {error}")
    with suppress(OSError):
        swap = "memory.swap.max" if is_v2 else "memory.memsw.limit_in_bytes"
        (folder / swap).write_text("0" if is_v2 else str(LIMIT))
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


@pytest.fixture
def eat(cgroup: Cgroup) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for eater in started:
        eater.kill()
        eater.communicate()


def start(cgroup: Cgroup, started: list[subprocess.Popen[bytes]], step: int, pause_s: float) -> None:
    """It is in the cgroup before it takes its first byte."""
    eater = subprocess.Popen([sys.executable, "-c", EATER, str(step), str(pause_s)], stdin=subprocess.PIPE)
    started.append(eater)
    (cgroup.folder / "cgroup.procs").write_text(str(eater.pid))
    assert eater.stdin is not None
    eater.stdin.write(b"go\n")
    eater.stdin.flush()


@dataclass(frozen=True)
class Seen:
    watch: MemoryWatch
    kernel: tuple[KernelEvent, ...]
    left_bytes: int


def guard(cgroup: Cgroup, eater: subprocess.Popen[bytes], proc: Path, limits: GuardLimits) -> Seen:
    """Like a supervisor, but faster because the cgroup is smaller: sample, and kill on a stop."""
    events: list[KernelEvent] = []
    log, watch, left = KernelLog(), MemoryWatch(limits), LIMIT
    deadline = time.monotonic() + GIVE_UP_S
    while eater.poll() is None and time.monotonic() < deadline:
        cgroup.write_meminfo(proc)
        look = sample(log, proc)
        assert look.memory is not None
        left = look.memory.available_bytes
        events += look.kernel or ()
        watch = watch.after(look)
        if watch.stop:
            eater.kill()
            eater.wait()
            break
        time.sleep(1 / LOOKS_A_SECOND)
    events += log.new_events() or ()
    log.close()
    return Seen(watch, tuple(events), left)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (GuardLimits(FLOOR), "rate"),
        # Planned down to the floor, so that its speed says nothing.
        (GuardLimits(FLOOR, expected_bytes=LIMIT - FLOOR, available_bytes=LIMIT), "floor"),
    ],
)
def test_the_guard_acts_before_the_oom_killer(
    cgroup: Cgroup, eat: list[subprocess.Popen[bytes]], tmp_path: Path, limits: GuardLimits, kind: str
) -> None:
    start(cgroup, eat, 5 * MIB, 0.08)
    result = guard(cgroup, eat[0], tmp_path, limits)
    assert result.watch.stop is not None and result.watch.stop.kind == kind, result
    assert result.left_bytes > 0 and cgroup.oom_kills == 0
    cgroup.write_meminfo(tmp_path)
    after = sample(proc=tmp_path).memory
    assert after is not None and after.available_bytes > result.left_bytes + 50 * MIB, (
        "memory did not come back"
    )


def test_without_the_guard_the_oom_killer_kills_it(
    cgroup: Cgroup, eat: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    start(cgroup, eat, 20 * MIB, 0.05)
    result = guard(cgroup, eat[0], tmp_path, GuardLimits(floor_bytes=0))
    assert result.watch.stop is None
    assert eat[0].returncode == -signal.SIGKILL and cgroup.oom_kills == 1
    # From the kernel's log; the limit of another container is no reason to stop.
    log = KernelLog()
    if log.new_events() is not None:
        assert "oom-cgroup" in {event.kind for event in result.kernel}
    log.close()


def test_a_process_within_its_plan_is_not_stopped(
    cgroup: Cgroup, eat: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The same speed, foreseen: it ends by itself, with memory left."""
    program = EATER.replace("while True", "while len(held) < 20")
    argv = [sys.executable, "-c", program, str(5 * MIB), "0.02"]
    eater = subprocess.Popen(argv, stdin=subprocess.PIPE)
    eat.append(eater)
    (cgroup.folder / "cgroup.procs").write_text(str(eater.pid))
    assert eater.stdin is not None
    eater.stdin.write(b"go\n")
    eater.stdin.flush()
    result = guard(cgroup, eater, tmp_path, GuardLimits(FLOOR, expected_bytes=120 * MIB))
    assert result.watch.stop is None and eater.returncode == 0
