"""Memory limits of cgroups, version 1 and 2, as containers, systemd units and batch systems set them. Pure.

`/proc/meminfo` shows the whole machine, also to a process that may use only a part of it. What binds it are
the limits of its own cgroup and of every one above. `/proc/self/cgroup` names its own by the kernel's path,
`/proc/self/mountinfo` says which part of that tree is mounted where: a container often sees only its own.

    https://docs.kernel.org/admin-guide/cgroup-v2.html, cgroup-v1/memory.html      seen 2026-11-15
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from firesteel.facts.host.host import Meminfo
from firesteel.values import Value, replace

ReadText = Callable[[str], str]
"""The text of a file in a cgroup's folder; empty: there is none."""
_NO_LIMIT = 2**60
"""Version 1 writes a number near 2^63 where there is no limit."""


class CgroupMemory(Value):
    limit_bytes: int
    used_bytes: int
    cache_bytes: int = 0
    """The part of it that is page cache, which the kernel drops when it needs memory."""

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes + self.cache_bytes)


def memory_cgroups(cgroup: str, mountinfo: str) -> tuple[str, ...]:
    """`/proc/self/cgroup` and `/proc/self/mountinfo` -> its folders, its own first, then those above it."""
    own: dict[bool, str] = {}  # is version 2 -> its path
    for number, controllers, path in re.findall(r"^(\d+):([^:\n]*):(/.*)$", cgroup, re.M):
        if number == "0" and not controllers:
            own[True] = path
        elif "memory" in controllers.split(","):
            own[False] = path
    folders: list[str] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *options) = before.split(" "), (after or " ").split(" ")
        is_v1 = kind == "cgroup" and "memory" in options[-1].split(",")
        path = own.get(kind == "cgroup2") if is_v1 or kind == "cgroup2" else None
        if path is not None and len(fields) > 4:
            folders += _upwards(path, root=fields[3], mount=fields[4])
    return tuple(dict.fromkeys(folders))


def _upwards(path: str, root: str, mount: str) -> list[str]:
    """The folder of a path in a tree whose part `root` is mounted at `mount`, and those above it."""
    try:
        inside = PurePosixPath(path).relative_to(root)
    except ValueError:  # mounted from elsewhere: what is at the mount is all that can be seen
        inside = PurePosixPath()
    if ".." in inside.parts:  # a namespace shows what is above its own root like that
        inside = PurePosixPath()
    folder = PurePosixPath(mount) / inside
    return [str(each) for each in (folder, *folder.parents) if each.is_relative_to(mount)]


def cgroup_memory(read: ReadText) -> CgroupMemory | None:
    """The limit of one cgroup; None: it has none. `memory.high` slows down what exceeds it, to a crawl."""
    limits = [
        int(text)
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes")
        if (text := read(name).strip()).isdigit() and int(text) < _NO_LIMIT
    ]
    used = (read("memory.current") or read("memory.usage_in_bytes")).strip()
    if not limits or not used.isdigit():
        return None
    stat = {name: int(value) for name, value in re.findall(r"^(\w+) (\d{1,20})$", read("memory.stat"), re.M)}
    # In version 1 only the fields with `total_` count the cgroups below it.
    cache = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("active_file", "inactive_file"))
    return CgroupMemory(min(limits), int(used), min(cache, int(used)))


def oom_kills(read: ReadText) -> int | None:
    """How many processes of a cgroup the kernel has killed because memory ran out; None: not counted."""
    found = re.search(r"^oom_kill (\d{1,15})$", read("memory.events") or read("memory.oom_control"), re.M)
    return int(found[1]) if found else None


def limited(memory: Meminfo, cgroups: Iterable[CgroupMemory]) -> Meminfo:
    """The memory that is left to a process under these limits."""
    for cgroup in cgroups:
        if cgroup.limit_bytes < memory.total_bytes:
            memory = replace(memory, total_bytes=cgroup.limit_bytes, limit_bytes=cgroup.limit_bytes)
        memory = replace(
            memory,
            available_bytes=min(memory.available_bytes, cgroup.available_bytes),
            free_bytes=min(memory.free_bytes, max(0, cgroup.limit_bytes - cgroup.used_bytes)),
        )
    return memory
