"""A host: what a launch has to live on. Live facts come from `/proc` and `nvidia-smi`, as text handed in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from firesteel.units import GIB, MIB

BandwidthKind = Literal["measured", "reported"]


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    driver: str
    compute_capability: str

    @property
    def is_gb10(self) -> bool:
        return self.compute_capability == "12.1" or "GB10" in self.name


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    """`local` for the machine at hand, `gb10` for a Spark at rest from the data sheet."""
    title: str
    hardware: str | None
    """Name of the hardware file that describes it; None for a machine without one."""
    cores: int
    memory_total_bytes: int
    memory_available_bytes: int
    keep_free_bytes: int
    """What a launch must leave: below it the host itself is in danger."""
    bandwidth_bytes_per_s: float | None
    bandwidth_kind: BandwidthKind
    gpus: tuple[Gpu, ...] = ()

    @property
    def room_bytes(self) -> int:
        """What a launch may take."""
        return max(0, self.memory_available_bytes - self.keep_free_bytes)


@dataclass(frozen=True, slots=True)
class Meminfo:
    total_bytes: int
    available_bytes: int
    free_bytes: int


def parse_meminfo(text: str) -> Meminfo:
    """`/proc/meminfo` -> bytes. The kernel writes kB and means KiB."""
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}
    missing = {"MemTotal", "MemAvailable", "MemFree"} - kib.keys()
    if missing:
        raise ValueError(f"no {', '.join(sorted(missing))} in /proc/meminfo")
    return Meminfo(kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024, kib["MemFree"] * 1024)


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """`nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader` -> the GPUs."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return tuple(Gpu(*row) for row in rows if len(row) == 3)


def keep_free_bytes(total_bytes: int, ceiling_bytes: int | None) -> int:
    """With a known ceiling, what lies above it; else a twentieth of the memory, at least half a GiB."""
    if ceiling_bytes is not None:
        return total_bytes - ceiling_bytes
    return max(512 * MIB, min(4 * GIB, total_bytes // 20))
