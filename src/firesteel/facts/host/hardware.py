"""Known machines, and a host as a plan needs it: memory and GPUs.

On a GB10 the CPU and the GPU share one pool, so three sizes must not be confused: the installed memory (128
GB), what Linux and CUDA count (less: firmware and carve-outs), and the ceiling, above which launches have
wedged the whole host. Plans are made against the ceiling.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Literal

from msgspec.structs import asdict

from firesteel import shipped_data
from firesteel.errors import UsageError
from firesteel.facts.evidence import Confidence, Sources
from firesteel.units import GIB, KIB, MIB, parse_size
from firesteel.values import Expand, FileValue, PositiveInt, Value, YamlFile

BandwidthKind = Literal["measured", "reported"]


class Gpu(Value):
    name: str
    driver: str
    compute_capability: str
    memory_bytes: int | None = None
    """Its own memory; None when it has none (a GB10) or it is not known."""

    @property
    def is_gb10(self) -> bool:
        return self.compute_capability == "12.1" or "GB10" in self.name

    @classmethod
    def parse(cls, text: str) -> tuple[Gpu, ...]:
        """`nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total`, as CSV, -> the GPUs.

        The last column may be missing, and a GB10 has `[N/A]` in it: its memory is the host's.
        """
        rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
        return tuple(
            cls(row[0], row[1], row[2], smi_bytes("".join(row[3:]))) for row in rows if len(row) in (3, 4)
        )


class Host(Value):
    name: str
    """`local` for this machine, `gb10` for an idle Spark from the hardware data."""
    title: str
    hardware: str | None
    """Name of the hardware file that describes it; None for a machine without one."""
    cores: int
    memory_total_bytes: int
    memory_available_bytes: int
    keep_free_bytes: int
    """What a launch must leave free; with less the host itself is in danger."""
    bandwidth_bytes_per_s: float | None
    bandwidth_kind: BandwidthKind
    gpus: tuple[Gpu, ...] = ()
    joined_hosts: int = 1
    """How many hosts serve together, this one included: those of `cluster`."""
    disk_bytes_per_s: float | None = None
    """How fast the disk of the models is read, and how fast a mapped file; None: `doctor --measure` has not
    measured it."""
    mapped_bytes_per_s: float | None = None

    @property
    def room_bytes(self) -> int:
        """What a launch may use."""
        return max(0, self.memory_available_bytes - self.keep_free_bytes)


class Meminfo(Value):
    total_bytes: int
    available_bytes: int
    """The kernel's estimate of what it can allocate: free memory and the page cache that it can drop."""
    free_bytes: int
    """Unused memory. On a GB10 CUDA reports this as the free memory of the GPU."""
    cached_bytes: int | None = None
    """The page cache, shared memory (`/dev/shm`) included."""
    shmem_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    huge_pages_bytes: int | None = None
    """Reserved as huge pages: not available to anything else, used or not."""
    limit_bytes: int | None = None
    """The memory that the cgroups of this process allow it, where that is less than the machine has."""

    @property
    def swap_used_bytes(self) -> int | None:
        if self.swap_total_bytes is None or self.swap_free_bytes is None:
            return None
        return max(0, self.swap_total_bytes - self.swap_free_bytes)

    @classmethod
    def parse(cls, text: str) -> Meminfo:
        """`/proc/meminfo` -> bytes. The kernel writes kB and means KiB; huge pages are a plain count."""
        rows = re.findall(r"^(\w+):\s+(\d{1,18})(?: kB)?$", text, re.M)
        fields = {name: int(value) * (1 if name.startswith("HugePages_") else KIB) for name, value in rows}
        missing = {"MemTotal", "MemAvailable", "MemFree"} - fields.keys()
        if missing:
            raise ValueError(f"no {', '.join(sorted(missing))} in /proc/meminfo")
        pages, page_bytes = fields.get("HugePages_Total"), fields.get("Hugepagesize")
        return cls(
            fields["MemTotal"],
            fields["MemAvailable"],
            fields["MemFree"],
            fields.get("Cached"),
            fields.get("Shmem"),
            fields.get("SwapTotal"),
            fields.get("SwapFree"),
            0 if pages == 0 else pages * page_bytes if pages and page_bytes else None,
        )


def smi_bytes(cell: str) -> int | None:
    """`24564 MiB`, or `24564` with `nounits`."""
    match = re.fullmatch(r"([0-9]{1,9})( MiB)?", cell.strip())
    return int(match[1]) * MIB if match else None


def keep_free_under_limit_bytes(limit_bytes: int) -> int:
    """Under the limit of a cgroup: the host is not in danger, only the processes in it."""
    return max(128 * MIB, min(GIB, limit_bytes // 20))


def keep_free_bytes(total_bytes: int, ceiling_bytes: int | None) -> int:
    """A twentieth of the memory, from half a GiB to 4 GiB; with a known ceiling at least what is above it.

    A virtual machine or a partition may show less memory than the ceiling, and then nothing is above it.
    """
    generic = max(512 * MIB, min(4 * GIB, total_bytes // 20))
    return generic if ceiling_bytes is None else max(generic, total_bytes - ceiling_bytes)


SIZE = Expand(lambda value: parse_size(value) if isinstance(value, str) else value)
Size = Annotated[int, SIZE]


class HardwareFigure(FileValue, kw_only=True):
    """One number about a machine, with its observed spread (None: only the value was) and its evidence."""

    value: Size
    low: Size | None = None
    high: Size | None = None
    confidence: Confidence
    sources: Sources
    note: str | None = None


class HardwareFigures(FileValue, kw_only=True):
    installed: HardwareFigure
    memory: HardwareFigure
    """What the operating system and CUDA count."""
    ceiling: HardwareFigure
    """For everything on the host together; launches above it have wedged hosts."""
    bandwidth: HardwareFigure


class HardwareFile(FileValue, kw_only=True):
    title: str
    unified: bool
    """CPU and GPU share the memory: page cache, other programs and weights compete."""
    compute_capability: str
    arch: str
    cores: PositiveInt
    sources: Sources
    figures: HardwareFigures


class Hardware(HardwareFile, kw_only=True):
    name: str

    @property
    def memory_bytes(self) -> int:
        return self.figures.memory.value

    @property
    def ceiling_bytes(self) -> int:
        return self.figures.ceiling.value

    @property
    def bandwidth_bytes_per_s(self) -> int:
        return self.figures.bandwidth.value


def hardware(name: str) -> Hardware:
    """The machine with this name."""
    known = _shipped()
    if name.lower() not in known:
        raise UsageError(
            f"`{name}` is not a known machine; firesteel knows {', '.join(sorted(known))}",
            next=f"--host {min(known)}",
        )
    return known[name.lower()]


@cache
def _shipped() -> dict[str, Hardware]:
    paths = {PurePosixPath(path).stem: path for path in shipped_data.names("hardware")}
    return {name: read_hardware(name, shipped_data.yaml_file(path)) for name, path in paths.items()}


def read_hardware(name: str, written: YamlFile) -> Hardware:
    """A hardware file -> a machine, or InvalidFile with the lines of its mistakes."""
    return Hardware(name=name, **asdict(written.convert(HardwareFile)))


def idle_host(machine: Hardware) -> Host:
    """A host of this kind with nothing running on it."""
    return Host(
        name=machine.name,
        title=machine.title,
        hardware=machine.name,
        cores=machine.cores,
        memory_total_bytes=machine.memory_bytes,
        memory_available_bytes=machine.memory_bytes,
        keep_free_bytes=keep_free_bytes(machine.memory_bytes, machine.ceiling_bytes),
        bandwidth_bytes_per_s=float(machine.bandwidth_bytes_per_s),
        bandwidth_kind="reported",
    )
