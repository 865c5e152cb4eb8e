"""Memory limits of cgroups, from files as kernels write them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from firesteel.edge.host.memory import cgroup_limits, own_oom_kills
from firesteel.facts.host.hardware import Meminfo
from firesteel.facts.host.memory import CgroupMemory, cgroup_memory, limited, memory_cgroups, oom_kills
from firesteel.units import GIB, MIB

V2 = "31 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
V1 = "36 32 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:15 - cgroup cgroup rw,memory\n"
UNLIMITED_V1 = "9223372036854771712"


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "folders"),
    [
        # A systemd user session, version 2.
        (
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            "22 1 8:1 / / rw - ext4 /dev/root rw\n" + V2,
            (
                "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope",
                "/sys/fs/cgroup/user.slice/user-1000.slice",
                "/sys/fs/cgroup/user.slice",
                "/sys/fs/cgroup",
            ),
        ),
        # A container with a namespace of its own, version 2.
        ("0::/\n", V2, ("/sys/fs/cgroup",)),
        # A process that entered such a namespace from outside.
        ("0::/../../system.slice/x.service\n", V2, ("/sys/fs/cgroup",)),
        # Version 1 beside an empty version 2.
        (
            "5:cpu,cpuacct:/\n4:memory:/batch/job7\n0::/\n",
            V1 + "40 32 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            (
                "/sys/fs/cgroup/memory/batch/job7",
                "/sys/fs/cgroup/memory/batch",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/unified",
            ),
        ),
        # A docker container, version 1: its own part of the tree is mounted.
        (
            "4:memory:/docker/0af3\n",
            "900 899 0:31 /docker/0af3 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            ("/sys/fs/cgroup/memory",),
        ),
        # A controller of another kind, no mount, nonsense.
        ("3:cpu:/a\n", V1, ()),
        ("4:memory:/a\n", "", ()),
        ("\0:::\nx", "- - -\n\n - cgroup2", ()),
    ],
)
def test_folders(cgroup: str, mountinfo: str, folders: tuple[str, ...]) -> None:
    assert memory_cgroups(cgroup, mountinfo) == folders


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "memory.max": "734003200\n", "memory.high": "max\n", "memory.current": "104857600\n",
                "memory.stat": "anon 52428800\nfile 52428800\nshmem 1\nactive_file 10485760\n"
                "inactive_file 20971520\n",
            },
            CgroupMemory(700 * MIB, 100 * MIB, 30 * MIB),
        ),
        (
            {"memory.max": "max\n", "memory.high": "1073741824\n", "memory.current": "0\n"},
            CgroupMemory(GIB, 0),
        ),
        ({"memory.max": "max\n", "memory.high": "max\n", "memory.current": "9\n"}, None),
        (
            {
                "memory.limit_in_bytes": "734003200\n", "memory.usage_in_bytes": "104857600\n",
                "memory.stat": "active_file 1\ninactive_file 1\ntotal_active_file 10485760\n"
                "total_inactive_file 20971520\n",
            },
            CgroupMemory(700 * MIB, 100 * MIB, 30 * MIB),
        ),
        ({"memory.limit_in_bytes": UNLIMITED_V1, "memory.usage_in_bytes": "5"}, None),
        ({"memory.max": "many", "memory.current": "-3"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_limit_of_one_cgroup(files: dict[str, str], expected: CgroupMemory | None) -> None:
    assert cgroup_memory(lambda name: files.get(name, "")) == expected


def test_the_tightest_of_all_levels_counts() -> None:
    """The cgroup above is full of other processes."""
    machine = Meminfo(64 * GIB, 40 * GIB, 30 * GIB)
    own, above = CgroupMemory(8 * GIB, GIB), CgroupMemory(16 * GIB, 15 * GIB, GIB)
    assert limited(machine, [own, above]) == Meminfo(8 * GIB, 2 * GIB, GIB, limit_bytes=8 * GIB)
    assert limited(machine, [CgroupMemory(100 * GIB, GIB)]).limit_bytes is None
    assert limited(machine, []) == machine


def test_kills_are_counted_in_both_versions() -> None:
    v2 = {"memory.events": "low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\noom_group_kill 0\n"}
    v1 = {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}
    for files, count in ((v2, 2), (v1, 1), ({}, None)):
        assert oom_kills(partial(_text, files)) == count


def _text(files: dict[str, str], name: str) -> str:
    return files.get(name, "")


def test_a_recorded_machine_with_version_2(tmp_path: Path) -> None:
    """Ubuntu 24.04, systemd-run --user --scope -p MemoryMax=700M; the kernel here has only version 1."""
    scope = tmp_path / "sys/fs/cgroup/user.slice/run-u7.scope"
    scope.mkdir(parents=True)
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("0::/user.slice/run-u7.scope\n")
    (proc / "mountinfo").write_text(V2)
    for name, text in {"memory.max": "734003200", "memory.current": "73400320"}.items():
        (scope / name).write_text(f"{text}\n")
    (scope / "memory.events").write_text("oom 0\noom_kill 3\n")
    (scope.parent / "memory.max").write_text("max\n")
    (scope.parent / "memory.current").write_text("1\n")
    assert cgroup_limits(tmp_path) == [CgroupMemory(700 * MIB, 70 * MIB)]
    assert own_oom_kills(tmp_path) == 3
