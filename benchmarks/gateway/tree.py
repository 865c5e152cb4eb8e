"""CPU time, memory and open files of a process and all its children, from /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def pids(root: int) -> list[int]:
    """The process and its descendants."""
    parents = {int(each.name): _parent(each) for each in PROC.iterdir() if each.name.isdigit()}
    found = [root]
    for pid in found:  # grows while it is read
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _parent(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def cpu_ns(root: int) -> int:
    """Time on a core, of every thread; schedstat counts in nanoseconds where `times` counts in hundredths."""
    total = 0
    for pid in pids(root):
        with suppress(OSError):
            for task in (PROC / str(pid) / "task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    return total


def rss_bytes(root: int) -> int:
    return _memory(root, "VmRSS:")


def peak_bytes(root: int) -> int:
    return _memory(root, "VmHWM:")


def _memory(root: int, field: str) -> int:
    return sum(_status(pid, field) for pid in pids(root))


def _status(pid: int, field: str) -> int:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def open_files(root: int) -> list[str]:
    """What each is: a path, `socket:`, `pipe:`."""
    found = []
    for pid in pids(root):
        with suppress(OSError):
            for link in (PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):  # closed meanwhile
                    found.append(str(link.readlink()).partition("[")[0])
    return found
