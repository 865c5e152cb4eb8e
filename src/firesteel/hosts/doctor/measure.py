"""`doctor --measure`: memory, disk, wake-up and GPU, in turns, so that drift affects all alike.

What needs root (another read-ahead, no idle states) is measured where it is allowed, and is as it was
afterwards. The figures are kept in FIRESTEEL_HOME; checks and `plan` use the newest of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from firesteel.edge.home import Home, free_bytes
from firesteel.edge.host.machine import (
    LOAD_MODES,
    add_measurements,
    gpus,
    measure_read_bandwidth,
    no_idle_states,
    read_probe,
    read_speed,
    remember_bandwidth,
    temporary_file,
    wake_up_us,
)
from firesteel.edge.host.machine_files import sim_folder
from firesteel.errors import HostNotReady
from firesteel.facts.host.gpus import GpuReading
from firesteel.facts.host.host_facts import HostFacts, HostMeasurement, busy_clock_mhz
from firesteel.units import GIB
from firesteel.values import Value

_ROUNDS = 3
_READ_AHEADS = ("128", "4096", "8192")
_FILE_BYTES, _MIN_FREE_BYTES = 1 * GIB, 8 * GIB
_READ_S = 2.0
"""A slow or busy disk reads less of the file, or 18 readings would take minutes."""
_GPU_S, _GPU_TIMEOUT_S = 3.0, 60


class Measuring(Value):
    """What is measured now."""

    what: str


class NotMeasured(Value):
    what: str
    why: str


MeasureEvent = Measuring | NotMeasured | HostMeasurement


def measure(home: Home, size: int = _FILE_BYTES) -> Iterator[MeasureEvent]:
    """Stores the figures at the end."""
    if sim_folder():
        raise HostNotReady("nothing can be measured on a simulated Spark", next="leave out `--sim`")
    figures: list[HostMeasurement] = []
    for event in _measure(home, size):
        if isinstance(event, HostMeasurement):
            figures.append(event)
        yield event
    add_measurements(home, figures)


def _measure(home: Home, size: int) -> Iterator[MeasureEvent]:
    cores = len(os.sched_getaffinity(0))
    if why := _busy(os.getloadavg()[0], cores):
        yield NotMeasured("this host at rest", why)
    yield Measuring("memory bandwidth")
    rate = max(measure_read_bandwidth(cores) for _ in range(_ROUNDS))
    remember_bandwidth(home, cores, rate)
    yield figure("memory_read_bytes_per_s", rate, "B/s")
    facts = HostFacts.of(read_probe(only=("disks", "block")))
    yield from _disk(home, facts, size)
    yield from _wake_up()
    yield from _gpu()


def _busy(load: float, cores: int) -> str | None:
    if load <= cores / 2:
        return None
    return f"it is busy (load {load:.1f} on {cores} cores), so it can do more than these figures; try again"


# --- disk ---


def _disk(home: Home, facts: HostFacts, size: int) -> Iterator[MeasureEvent]:
    yield Measuring("disk")
    if free_bytes(home.root) < _MIN_FREE_BYTES + size:
        yield NotMeasured("disk", "less than 9 GiB are free")
        return
    disk = facts.disk("own")
    knob = Path(f"/sys/block/{disk.block}/queue/read_ahead_kb") if disk else Path("/nonexistent")
    rates: defaultdict[str, list[float]] = defaultdict(list)
    with temporary_file(home.root, size) as path:
        size = min(size, int(_READ_S * (read_speed(path, "read", size // 8) or size)))
        for _ in range(_ROUNDS):
            for mode in LOAD_MODES:
                _add(rates[mode], read_speed(path, mode, size))
            if os.geteuid() == 0 and knob.exists():
                with _kept(knob):
                    for read_ahead in _READ_AHEADS:
                        knob.write_text(read_ahead)
                        _add(rates[f"mmap, read-ahead {read_ahead} KiB"], read_speed(path, "mmap", size))
    if rates["direct"]:
        yield figure("disk_read_bytes_per_s", median(rates["direct"]), "B/s")
    for how, found in rates.items():
        if found:
            yield figure(f"load ({how})", median(found), "B/s")
    if not any("read-ahead" in how for how in rates):
        yield NotMeasured(
            "read-ahead", "another one can be set only by root: sudo firesteel doctor --measure"
        )


def _add(found: list[float], rate: float | None) -> None:
    if rate:
        found.append(rate)


@contextmanager
def _kept(knob: Path) -> Iterator[None]:
    """A shell puts the value back when the pipe to it is closed, also because this process was killed."""
    restore = ("sh", "-c", 'cat >/dev/null; printf %s "$1" >"$2"', "sh", knob.read_text().strip(), str(knob))
    with subprocess.Popen(restore, stdin=subprocess.PIPE, start_new_session=True):
        yield


# --- wake-up ---


def _wake_up() -> Iterator[MeasureEvent]:
    yield Measuring("wake-up")
    plain: list[tuple[float, float]] = []
    held: list[tuple[float, float]] = []
    for _ in range(_ROUNDS):
        plain.append(wake_up_us())
        with no_idle_states() as is_held:
            if is_held:
                held.append(wake_up_us())
    yield figure("wake_up_us", median(row[0] for row in plain), "µs")
    yield figure("wake_up_p99_us", median(row[1] for row in plain), "µs")
    if held:
        yield figure("wake_up_us (no idle states)", median(row[0] for row in held), "µs")
        yield figure("wake_up_p99_us (no idle states)", median(row[1] for row in held), "µs")
    else:
        yield NotMeasured("wake-up without idle states", "needs root and /dev/cpu_dma_latency")


# --- GPU ---


def _gpu() -> Iterator[MeasureEvent]:
    try:
        found = gpus()
    except HostNotReady:
        yield NotMeasured("GPU", "nvidia-smi did not answer")
        return
    if not found:
        yield NotMeasured("GPU", "nvidia-smi shows none")
        return
    yield Measuring("GPU clock and memory under load")
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "firesteel.hosts.doctor.gpu_load", str(_GPU_S)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    busy: list[GpuReading] = []
    while child.poll() is None:
        busy += HostFacts.of(read_probe(only=("gpu",))).busy
    try:
        output, error = child.communicate(timeout=_GPU_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        yield NotMeasured("GPU", "the driver does not answer")
        return
    if child.returncode:
        yield NotMeasured("GPU", error.decode(errors="replace").strip().rpartition("\n")[2])
        return
    yield figure("gpu_memory_bytes_per_s", float(json.loads(output)["bytes_per_s"]), "B/s")
    clock = busy_clock_mhz(tuple(busy))
    power = [reading.power_w for reading in busy if reading.power_w is not None]
    if clock is None:
        yield NotMeasured("GPU clock", "nvidia-smi showed no load")
        return
    yield figure("gpu_clock_mhz", clock, "MHz")
    if power:
        yield figure("gpu_power_w", max(power), "W")


def figure(name: str, value: float, unit: str) -> HostMeasurement:
    return HostMeasurement(name, value, unit, datetime.now(UTC).date().isoformat())
