"""How much simulated memory each process holds, and the `/proc` files that follow from it.

Each engine writes what it holds into `memory/PID-TICKS`. A reader adds up the files of processes that are
alive and updates `/proc`, so memory is free again the moment a process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

from firesteel.edge.host.process import Pid, is_alive
from firesteel.sim.spark import SimSpark, read_spark
from firesteel.units import GIB

_PAGE = 4096
_ORDERS = 11


def set_held_bytes(folder: Path, pid: Pid, held_bytes: int) -> None:
    """Records how much a process holds from now on."""
    path = folder / "memory" / f"{pid.number}-{pid.started_ticks}"
    _write(path, str(held_bytes))
    update_proc(folder)


def held_bytes(folder: Path) -> dict[Pid, int]:
    """By process, of those that are alive; files of others are removed."""
    held: dict[Pid, int] = {}
    for path in (folder / "memory").glob("[0-9]*-[0-9]*"):
        number, _, ticks = path.name.partition("-")
        pid = Pid(int(number), int(ticks))
        if not is_alive(pid):
            path.unlink(missing_ok=True)
            continue
        try:
            held[pid] = int(path.read_text())
        except (FileNotFoundError, ValueError):
            continue
    return held


def available_bytes(folder: Path, spark: SimSpark) -> int:
    return max(0, spark.memory_available_bytes - sum(held_bytes(folder).values()))


def update_proc(folder: Path) -> None:
    """Writes `/proc` as it is now; every file is replaced atomically."""
    spark, proc = read_spark(folder), folder / "proc"
    with (folder / "memory" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # or a slow writer would undo what a later one has seen
        available = available_bytes(folder, spark)
        _write(proc / "meminfo", _meminfo(spark, available))
        _write(proc / "pressure" / "memory", _pressure(available))
        _write(proc / "buddyinfo", _buddyinfo(spark, available))
        _write(proc / "vmstat", _vmstat(spark, available))


def log_kernel_message(folder: Path, message: str) -> None:
    """Appends a record in the kernel's format: priority, number, microseconds, flags; then the message."""
    path = folder / "dev" / "kmsg"
    with path.open("a+") as log:
        log.seek(0)
        number = sum(1 for _ in log)
        log.write(f"3,{number},{time.monotonic_ns() // 1000},-;{message}\n")


def _meminfo(spark: SimSpark, available: int) -> str:
    free = _free(available)
    total = spark.memory_total_bytes
    sizes = {
        "MemTotal": total, "MemFree": free, "MemAvailable": available, "Buffers": 0,
        "Cached": max(0, available - free), "SwapCached": 0, "Dirty": 0,
        "AnonPages": max(0, total - available), "Shmem": 0, "SwapTotal": 0, "SwapFree": 0,
    }  # fmt: skip
    rows = "".join(f"{name + ':':<16}{size // 1024:>8} kB\n" for name, size in sizes.items())
    return f"{rows}HugePages_Total:       0\nHugepagesize:       2048 kB\n"


def _free(available: int) -> int:
    """A tenth of the available memory is page cache, which the kernel would give back."""
    return available * 9 // 10


def _pressure(available: int) -> str:
    """No task waits for memory until less than 4 GiB are left; then all do."""
    # Made up: it only has to rise steeply, as PSI does when a real host starts to thrash.
    some = max(0.0, min(95.0, 100 * (1 - available / (4 * GIB))))
    line = "{} avg10={:.2f} avg60={:.2f} avg300={:.2f} total={}\n"
    total = round(some * 1e5)
    return line.format("some", some, some / 3, some / 9, total) + line.format(
        "full", some * 0.8, some / 4, some / 12, total * 4 // 5
    )


def _buddyinfo(spark: SimSpark, available: int) -> str:
    """Free memory in blocks of 2^n pages; a fragmented host has only small ones."""
    pages = _free(available) // _PAGE
    counts = [0] * _ORDERS
    if spark.fault("fragmentation"):
        counts[0], counts[1] = pages // 2, pages // 4
    else:
        counts[-1] = pages >> (_ORDERS - 1)
        counts[0] = pages - (counts[-1] << (_ORDERS - 1))
    return f"Node 0, zone   Normal {' '.join(f'{count:6}' for count in counts)} \n"


def _vmstat(spark: SimSpark, available: int) -> str:
    low = max(0, 4 * GIB - available) // _PAGE
    rows = {
        "nr_free_pages": _free(available) // _PAGE,
        "pgscan_direct": low,
        "pgsteal_direct": low // 2,
        "allocstall_normal": low // 64,
        "compact_stall": 5000 if spark.fault("fragmentation") else 0,
        "compact_fail": 4900 if spark.fault("fragmentation") else 0,
        "oom_kill": 0,
    }
    return "".join(f"{name} {count}\n" for name, count in rows.items())


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(text)
    temporary.replace(path)
