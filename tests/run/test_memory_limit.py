"""firesteel under the memory limit of a real cgroup, of either version."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.conftest import Ran

from firesteel.edge.home import Home
from firesteel.facts.host.hardware import Meminfo
from firesteel.facts.host.memory import KernelEvent, MemorySample
from firesteel.run.service import ServiceSpec, death, load, write_spec
from firesteel.run.supervise.exits import OomCounts, killed_for_memory
from firesteel.units import GIB, MIB

ROOT = Path("/sys/fs/cgroup")
EATS = "held = []\nwhile True: held.append(bytearray(b'x') * (8 << 20))"

Limited = Callable[..., Ran]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    """Runs Python in a cgroup with that limit."""
    is_v2 = (ROOT / "cgroup.controllers").exists()
    folder = (ROOT if is_v2 else ROOT / "memory") / f"firesteel-limit-{os.getpid()}"
    try:
        if is_v2:
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
    except OSError as error:
        assert os.environ.get("CI") != "true", f"scripts/test mounts cgroups in CI: {error}"
        pytest.skip(f"needs root and a memory cgroup: {error}")

    def run(limit: int, *words: str) -> Ran:
        (folder / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(limit))
        enter = f'echo $$ > {folder}/cgroup.procs && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", enter, "sh", sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "FIRESTEEL_HOME": str(tmp_path / "home")},
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    yield run
    for _ in range(400):
        with suppress(OSError):
            folder.rmdir()
            return
        for number in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(number), 9)
        time.sleep(0.05)


def test_a_plan_follows_the_limit(limited: Limited) -> None:
    ran = limited(700 * MIB, "-m", "firesteel", "plan", "smollm2", "--json")
    assert ran.code == 0, ran.err
    host = ran.json["host"]
    assert host["memory_total_bytes"] == 700 * MIB
    assert 346 * MIB < host["room_bytes"] < 700 * MIB
    assert "limited to 700.0 MiB of memory by a cgroup" in host["title"]


def test_up_refuses_what_the_limit_would_kill(limited: Limited) -> None:
    ran = limited(280 * MIB, "-m", "firesteel", "up", "smollm2")
    assert ran.code == 4 and "limited to 280.0 MiB of memory by a cgroup" in ran.err, ran.err


def test_a_kill_by_the_kernel_is_told_with_its_memory(limited: Limited, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    argv = (sys.executable, "-c", EATS)
    write_spec(home.services / "one", ServiceSpec("one", "http://127.0.0.1:9", "one", argv))
    ran = limited(200 * MIB, "-m", "firesteel.run.supervise.supervisor", str(home.services / "one"))
    assert ran.code == 0, ran.err
    service = load(home, "one")
    assert service is not None and service.state is not None and service.phase == "dead"
    told = death(service.state)
    assert told.startswith("the kernel killed it because memory ran out: "), told
    assert "the limit of its cgroup is 200.0 MiB" in told


def sample(kills: int, *texts: str) -> MemorySample:
    events = tuple(KernelEvent("oom-cgroup", text) for text in texts)
    return MemorySample(0, None, oom_kills=kills, kernel=events)


LOGGED = (
    "Memory cgroup out of memory: Killed process 812 (python3) total-vm:902124kB, anon-rss:204800kB, "
    "file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:460kB oom_score_adj:0"
)


@pytest.mark.parametrize(
    ("before", "after", "held", "memory", "told"),
    [
        (OomCounts(1, 5), OomCounts(1, 5), 9, None, None),
        (OomCounts(), OomCounts(), 9, None, None),
        (
            OomCounts(1, 5), OomCounts(2, 6), 190 * MIB, Meminfo(GIB, 0, 0, limit_bytes=GIB),
            "it held 190.0 MiB, and the limit of its cgroup is 1.0 GiB",
        ),
        (OomCounts(None, 5), OomCounts(None, 6), None, Meminfo(64 * GIB, 0, 0),
         "what it held is not known, and the host has 64.0 GiB"),
        (OomCounts(0, 5), OomCounts.of(sample(6, LOGGED), 1), 9, None,
         "it held 200.0 MiB, and the host was out of memory"),
    ],
)  # fmt: skip
def test_who_killed_it(
    before: OomCounts, after: OomCounts, held: int | None, memory: Meminfo | None, told: str | None
) -> None:
    why = killed_for_memory(before, after, held, memory)
    assert why == (told and f"the kernel killed it because memory ran out: {told}")


def test_who_was_killed_elsewhere_on_the_host_is_not_the_engine() -> None:
    before, after = OomCounts(1, 5), OomCounts.of(sample(6, LOGGED), 1)
    assert killed_for_memory(before, after, 9, None) is None, "its own cgroup counts no kill"
    told = killed_for_memory(before, after, 9, None, is_container=True)
    assert told and "it held 200.0 MiB" in told, "the cgroup of a container is not the one that was counted"
