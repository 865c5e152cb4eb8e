"""This machine as a Host: memory, GPUs, and its memory bandwidth, measured if no data sheet gives it.

Also what `doctor` reads and measures here: the probe of `facts.host.probe`, how fast a file comes from the
disk (around the page cache, through it, and mapped; each read cold), and how late a thread wakes up from a
short sleep. `doctor --measure` adds its figures run by run; the newest of each name counts.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from firesteel.edge.home import Home, exclusive, read_json, read_state, write_state, write_text
from firesteel.edge.host import nvidia_smi
from firesteel.edge.host.machine_files import boot_id, machine_file, sim_folder
from firesteel.edge.host.memory import meminfo
from firesteel.errors import HostNotReady
from firesteel.facts.host.hardware import (
    BandwidthKind,
    Gpu,
    Host,
    hardware,
    keep_free_bytes,
    keep_free_under_limit_bytes,
)
from firesteel.facts.host.host_facts import HostMeasurement
from firesteel.facts.host.probe import Probe, probe_script
from firesteel.units import GIB, MIB, show_bytes

_MEASUREMENTS = 5
_SMI = ("--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader")


def gpus() -> tuple[Gpu, ...]:
    return Gpu.parse(nvidia_smi.require(*_SMI) or "")


def local_host(home: Home) -> Host:
    """This machine. A GB10 gets its bandwidth from the data sheet; any other machine is measured."""
    memory, gpu_list, cores = meminfo(), gpus(), len(os.sched_getaffinity(0))
    measured = {name: figure.value for name, figure in latest_measurements(home).items()}
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
    boot = boot_id()
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
    boot, path = boot_id(), home.root / "bandwidth.json"
    best, times = _saved_bandwidth(path, boot, cores)
    _save_bandwidth(path, boot, cores, max(best, bytes_per_s), times + 1)


def _save_bandwidth(path: Path, boot: str | None, cores: int, bytes_per_s: float, times: int) -> None:
    write_text(path, json.dumps({"boot": boot, "cores": cores, "bytes_per_s": bytes_per_s, "times": times}))


def _saved_bandwidth(path: Path, boot: str | None, cores: int) -> tuple[float, int]:
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


_MAX_MEASUREMENTS = 5000


def measurements_path(home: Home) -> Path:
    return home.root / "host_measurements.json"


def all_measurements(home: Home) -> list[HostMeasurement]:
    """The oldest first."""
    return read_state(measurements_path(home), list[HostMeasurement]) or []


def latest_measurements(home: Home) -> dict[str, HostMeasurement]:
    return {figure.name: figure for figure in all_measurements(home)}


def add_measurements(home: Home, figures: list[HostMeasurement]) -> None:
    with exclusive(measurements_path(home)):
        write_state(measurements_path(home), (all_measurements(home) + figures)[-_MAX_MEASUREMENTS:])


_PROBE_TIMEOUT_S = 90
"""Its commands stop themselves after 3.5 s; this is for a shell that cannot, or a host with a load of 40."""


def read_probe(root: Path | None = None, only: tuple[str, ...] = ()) -> Probe:
    """Takes about a second; commands that do not answer are given up after 3.5 s."""
    if root is None and sim_folder():
        machine_file("proc/meminfo")  # brings the simulated /proc up to date
    folder = str(root.absolute()) if root else ""
    try:
        done = subprocess.run(
            ["sh", "-s"],
            input=probe_script(only, folder).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        what = f"this host is too busy to be read within {_PROBE_TIMEOUT_S} s"
        raise HostNotReady(what, next="uptime, and stop what loads it") from error
    except OSError as error:
        raise HostNotReady(f"this host cannot be read: {error}", next="sh -c 'echo works'") from error
    return Probe.parse(done.stdout.decode(errors="replace"))


LoadMode = Literal["direct", "read", "mmap"]
"""direct: past the page cache (O_DIRECT). read: into a buffer, as `--no-mmap` and `eager` loads do. mmap:
page by page as it is touched, as llama.cpp does by default."""
LOAD_MODES: tuple[LoadMode, ...] = ("direct", "read", "mmap")
_BLOCK = 8 * MIB
_PAGE = 4096


@contextmanager
def temporary_file(folder: Path, size: int) -> Iterator[Path]:
    """A file that does not compress, on the disk of this folder; it has no name, so none can be left over."""
    folder.mkdir(parents=True, exist_ok=True)
    block = os.urandom(MIB)
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(size // MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        yield Path(f"/proc/self/fd/{file.fileno()}")


def read_speed(path: Path, mode: LoadMode, max_bytes: int) -> float | None:
    """Bytes per second; None if the file system has no such mode (tmpfs has no O_DIRECT)."""
    _drop_from_cache(path)
    size = min(path.stat().st_size, max_bytes) // _BLOCK * _BLOCK
    if not size:
        return None
    try:
        began = time.perf_counter()
        {"direct": _read_direct, "read": _read_buffered, "mmap": _read_mapped}[mode](path, size)
        return size / (time.perf_counter() - began)
    except OSError:
        return None
    finally:
        _drop_from_cache(path)


def _drop_from_cache(path: Path) -> None:
    with path.open("rb") as file, suppress(OSError):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_direct(path: Path, size: int) -> None:
    buffer = mmap.mmap(-1, _BLOCK)  # aligned, as O_DIRECT wants it
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for _ in range(size // _BLOCK):
            os.readv(descriptor, [buffer])
    finally:
        os.close(descriptor)
        buffer.close()


def _read_buffered(path: Path, size: int) -> None:
    buffer = bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        for _ in range(size // _BLOCK):
            file.readinto(buffer)


def _read_mapped(path: Path, size: int) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as view:
        for offset in range(0, size, _PAGE):
            view[offset]


_SLEEP_S = 0.001
_QOS = Path("/dev/cpu_dma_latency")


def wake_up_us(times: int = 400) -> tuple[float, float]:
    """The median and the 99th percentile of how late it wakes up, in microseconds."""
    late: list[float] = []
    for _ in range(times):
        began = time.perf_counter_ns()
        time.sleep(_SLEEP_S)
        late.append((time.perf_counter_ns() - began) / 1000 - _SLEEP_S * 1e6)
    late.sort()
    return late[len(late) // 2], late[int(len(late) * 0.99)]


@contextmanager
def no_idle_states() -> Iterator[bool]:
    """Holds off the CPU's slower idle states. False: it is not allowed, or this kernel has none.

    Holding `/dev/cpu_dma_latency` open with a bound keeps the kernel out of them until it is closed: nothing
    is set, and nothing has to be undone. Opening it needs root.
    https://docs.kernel.org/power/pm_qos_interface.html, seen 2026-11-15
    """
    try:
        descriptor = os.open(_QOS, os.O_WRONLY)
    except OSError:
        yield False
        return
    try:
        os.write(descriptor, struct.pack("i", 0))
        yield True
    finally:
        os.close(descriptor)
