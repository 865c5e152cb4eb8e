"""This machine as a Host: memory, GPUs, and its memory bandwidth, measured where no data sheet gives it."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import threading
import time
from contextlib import suppress
from pathlib import Path

from firesteel.edge.files.home import Home, write_text
from firesteel.edge.files.host_measurements import latest
from firesteel.edge.files.state_file import read_json
from firesteel.edge.host import nvidia_smi
from firesteel.edge.host.machine_files import sim_folder
from firesteel.edge.host.memory import meminfo
from firesteel.errors import HostNotReady
from firesteel.facts.host.hardware import (
    BandwidthKind,
    Gpu,
    Host,
    hardware,
    keep_free_bytes,
    keep_free_under_limit_bytes,
    parse_gpus,
)
from firesteel.units import GIB, MIB, show_bytes

_MEASUREMENTS = 5
_SMI = ("--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader")


def gpus() -> tuple[Gpu, ...]:
    return parse_gpus(nvidia_smi.require(*_SMI) or "")


def local_host(home: Home) -> Host:
    """This machine. A GB10 gets its bandwidth from the data sheet; any other machine is measured."""
    memory, gpu_list, cores = meminfo(), gpus(), len(os.sched_getaffinity(0))
    measured = {name: figure.value for name, figure in latest(home).items()}
    disk, mapped = measured.get("disk_read_bytes_per_s"), measured.get("load (mmap)")
    if any(gpu.is_gb10 for gpu in gpu_list):
        sheet = hardware("gb10")
        title = f"simulated {sheet.title}" if sim_folder() else sheet.title
        return Host(
            "local", title, "gb10", cores, memory.total_bytes, memory.available_bytes,
            keep_free_bytes(memory.total_bytes, sheet.ceiling_bytes),
            *_gb10_bandwidth(float(sheet.bandwidth_bytes_per_s), measured), gpu_list,
            disk_bytes_per_s=disk, mapped_bytes_per_s=mapped,
        )  # fmt: skip
    title, keep_free = _cpu_name(), keep_free_bytes(memory.total_bytes, None)
    if memory.limit_bytes is not None:
        title = f"{title}, limited to {show_bytes(memory.limit_bytes)} of memory by a cgroup"
        keep_free = keep_free_under_limit_bytes(memory.limit_bytes)
    return Host(
        "local", title, None, cores, memory.total_bytes, memory.available_bytes, keep_free,
        bandwidth(home, cores), "measured", gpu_list,
            disk_bytes_per_s=disk, mapped_bytes_per_s=mapped,
    )  # fmt: skip


def _gb10_bandwidth(sheet: float, measured: dict[str, float]) -> tuple[float, BandwidthKind]:
    """The data sheet's, which predictions are fitted to; unless this GPU copies at less than half of it."""
    found = measured.get("gpu_memory_bytes_per_s")
    return (found, "measured") if found and found < sheet / 2 else (sheet, "reported")


def bandwidth(home: Home, cores: int) -> float:
    """Bytes that all cores together read per second: the best of the first measurements since boot.

    Other programs can only slow a measurement down, so the best is the closest to the truth.
    """
    boot = _boot_id()
    path = home.root / "bandwidth.json"
    best, times = _saved_bandwidth(path, boot, cores)
    if times >= _MEASUREMENTS:
        return best
    best = max(best, *(measure_read_bandwidth(cores) for _ in range(2)))
    with suppress(HostNotReady):  # if the folder cannot be written, it is only measured again
        _save_bandwidth(path, boot, cores, best, times + 1)
    return best


def remember_bandwidth(home: Home, cores: int, bytes_per_s: float) -> None:
    """What `doctor --measure` found, which `plan` uses until the next boot if it is the best."""
    boot, path = _boot_id(), home.root / "bandwidth.json"
    best, times = _saved_bandwidth(path, boot, cores)
    _save_bandwidth(path, boot, cores, max(best, bytes_per_s), times + 1)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _save_bandwidth(path: Path, boot: str, cores: int, bytes_per_s: float, times: int) -> None:
    write_text(path, json.dumps({"boot": boot, "cores": cores, "bytes_per_s": bytes_per_s, "times": times}))


def _saved_bandwidth(path: Path, boot: str, cores: int) -> tuple[float, int]:
    try:
        saved = read_json(path)
        if saved["boot"] == boot and saved["cores"] == cores:
            return float(saved["bytes_per_s"]), int(saved["times"])
    except (ValueError, KeyError, TypeError):
        pass
    return 0.0, 0


def measure_read_bandwidth(threads: int, seconds: float = 0.1) -> float:
    """Each thread scans a buffer larger than a cache with libc's `memchr`; ctypes releases the GIL for it."""
    size = 64 * MIB if meminfo().available_bytes > 4 * GIB else 16 * MIB
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes, memchr.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p
    # Filled, not zeroed: untouched zero pages are all the same page, which stays in the cache.
    buffers = [bytearray(b"\x01") * size for _ in range(threads)]
    rates: list[float] = []

    def scan(buffer: bytearray) -> None:
        view = (ctypes.c_char * size).from_buffer(buffer)
        done, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            memchr(ctypes.addressof(view), 0, size)
            done += size
        rates.append(done / spent)

    workers = [threading.Thread(target=scan, args=(buffer,)) for buffer in buffers]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(rates)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
