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
    memory_bytes: int | None = None
    """Its own memory; None when it has none of its own (a GB10) or nobody said."""

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
    """`nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total`, as CSV, -> the GPUs.

    The last column may be missing, and a GB10 has `[N/A]` in it: its memory is the host's.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return tuple(Gpu(row[0], row[1], row[2], _smi_bytes(row[3:])) for row in rows if len(row) in (3, 4))


def _smi_bytes(cells: list[str]) -> int | None:
    """`24564 MiB`, or `24564` with `nounits`."""
    match = re.fullmatch(r"([0-9]{1,9})( MiB)?", cells[0]) if cells else None
    return int(match[1]) * MIB if match else None


def keep_free_bytes(total_bytes: int, ceiling_bytes: int | None) -> int:
    """A twentieth of the memory, from half a GiB to 4 GiB; with a known ceiling, what lies above it if more.

    A virtual machine or a partition may show less memory than the ceiling, and nothing lies above it then.
    """
    generic = max(512 * MIB, min(4 * GIB, total_bytes // 20))
    return generic if ceiling_bytes is None else max(generic, total_bytes - ceiling_bytes)
