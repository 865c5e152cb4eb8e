"""A real process that really eats memory, in a real cgroup with a limit: who is first, guard or OOM killer?

The cgroup is the host: what it has left is written as a `/proc/meminfo`, and the guard looks at that. Beside
it the same eater runs without a guard, and the kernel does kill it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cgroups import Cgroup, memory_cgroup

from firesteel.edge.host.memory import KernelLog, sample
from firesteel.facts.host.memory import KernelEvent
from firesteel.run.supervise.guard import GuardLimits, MemoryWatch
from firesteel.units import KIB, MIB

LIMIT = 240 * MIB
FLOOR = 64 * MIB
LOOKS_A_SECOND = 10
EATER = """
import sys
held = []
for step in sys.stdin:
    held.append(bytearray(b"x") * int(step))
    print(flush=True)
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
def eater(cgroup: Cgroup) -> Iterator[subprocess.Popen[bytes]]:
    """It takes a step for each line that it reads, and answers."""
    argv = [sys.executable, "-c", EATER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        cgroup.processes.write_text(str(process.pid))  # before its first byte
        yield process
        process.kill()


@dataclass(frozen=True)
class Seen:
    watch: MemoryWatch
    kernel: tuple[KernelEvent, ...]
    left_bytes: int


def guard(
    cgroup: Cgroup,
    eater: subprocess.Popen[bytes],
    proc: Path,
    limits: GuardLimits,
    step: int,
    steps: int = 1000,
) -> Seen:
    """Like a supervisor: sample, and kill on a stop. It looks after each step of the eater. By the clock
    of the samples that is a tenth of a second, however long it takes."""
    assert eater.stdin and eater.stdout
    events: list[KernelEvent] = []
    log, watch, left = KernelLog(), MemoryWatch(limits), LIMIT
    for number in range(steps):
        eater.stdin.write(b"%d\n" % step)
        if not eater.stdout.readline():  # it was killed
            break
        write_meminfo(cgroup, proc)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("firesteel.edge.host.memory.uptime", lambda at_s=number / LOOKS_A_SECOND: at_s)
            look = sample(log, proc)
        assert look.memory is not None
        left = look.memory.available_bytes
        events += look.kernel or ()
        watch = watch.after(look)
        if watch.stop:
            eater.kill()
            break
    eater.stdin.close()
    eater.wait()
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
    cgroup: Cgroup, eater: subprocess.Popen[bytes], tmp_path: Path, limits: GuardLimits, kind: str
) -> None:
    result = guard(cgroup, eater, tmp_path, limits, 6 * MIB)
    assert result.watch.stop is not None and result.watch.stop.kind == kind, result
    assert result.left_bytes > 0 and cgroup.oom_kills == 0
    write_meminfo(cgroup, tmp_path)
    after = sample(proc=tmp_path).memory
    assert after is not None and after.available_bytes > result.left_bytes + 50 * MIB, (
        "memory did not come back"
    )


def test_without_the_guard_the_oom_killer_kills_it(
    cgroup: Cgroup, eater: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    result = guard(cgroup, eater, tmp_path, GuardLimits(floor_bytes=0), 20 * MIB)
    assert result.watch.stop is None
    assert eater.returncode == -signal.SIGKILL and cgroup.oom_kills == 1
    # From the kernel's log; the limit of another container is no reason to stop.
    log = KernelLog()
    if log.new_events() is not None:
        assert "oom-cgroup" in {event.kind for event in result.kernel}
    log.close()


def test_a_process_within_its_plan_is_not_stopped(
    cgroup: Cgroup, eater: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """The same speed, foreseen: it ends by itself, with memory left."""
    limits = GuardLimits(FLOOR, expected_bytes=120 * MIB)
    result = guard(cgroup, eater, tmp_path, limits, 6 * MIB, steps=17)
    assert result.watch.stop is None and eater.returncode == 0
