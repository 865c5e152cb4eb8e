"""A real process that really eats memory, in a real cgroup with a limit: who is first, guard or OOM killer?

The cgroup is the host: what it has left is written as a `/proc/meminfo`, and the guard looks at that. Beside
it the same eater runs without a guard, and the kernel does kill it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cgroups import Cgroup, memory_cgroup

from firesteel.edge.host.kernel_log import KernelLog
from firesteel.edge.host.memory import sample
from firesteel.facts import KernelEvent
from firesteel.run.supervise.guard import GuardLimits, MemoryWatch
from firesteel.units import KIB, MIB

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


def write_meminfo(cgroup: Cgroup, proc: Path) -> None:
    left = max(0, LIMIT - cgroup.used_bytes) // KIB
    half = proc / ".meminfo"
    half.write_text(f"MemTotal: {LIMIT // KIB} kB\nMemFree: {left} kB\nMemAvailable: {left} kB\n")
    half.replace(proc / "meminfo")


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    with memory_cgroup(LIMIT) as made:
        yield made


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
    cgroup.processes.write_text(str(eater.pid))
    assert eater.stdin is not None
    eater.stdin.write(b"go\n")
    eater.stdin.flush()


@dataclass(frozen=True)
class Seen:
    watch: MemoryWatch
    kernel: tuple[KernelEvent, ...]
    left_bytes: int
    longest_pause_s: float
    """Between two looks: a busy machine may not let the guard look in time."""


def guard(cgroup: Cgroup, eater: subprocess.Popen[bytes], proc: Path, limits: GuardLimits) -> Seen:
    """Like a supervisor, but faster because the cgroup is smaller: sample, and kill on a stop."""
    events: list[KernelEvent] = []
    log, watch, left = KernelLog(), MemoryWatch(limits), LIMIT
    looked_at, longest_pause_s = time.monotonic(), 0.0
    deadline = looked_at + GIVE_UP_S
    while eater.poll() is None and time.monotonic() < deadline:
        longest_pause_s = max(longest_pause_s, time.monotonic() - looked_at)
        looked_at = time.monotonic()
        write_meminfo(cgroup, proc)
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
    return Seen(watch, tuple(events), left, longest_pause_s)


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
    stop = result.watch.stop
    assert stop is not None and (stop.kind == kind or result.longest_pause_s > 3 / LOOKS_A_SECOND), result
    assert result.left_bytes > 0 and cgroup.oom_kills == 0
    write_meminfo(cgroup, tmp_path)
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
    cgroup.processes.write_text(str(eater.pid))
    assert eater.stdin is not None
    eater.stdin.write(b"go\n")
    eater.stdin.flush()
    result = guard(cgroup, eater, tmp_path, GuardLimits(FLOOR, expected_bytes=120 * MIB))
    assert result.watch.stop is None and eater.returncode == 0
