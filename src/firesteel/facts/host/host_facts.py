"""A host as `doctor` sees it: the facts that a probe holds, parsed. Pure.

    facts = host_facts(parse_probe(output))

What the probe does not say is None or empty. Judgements over these facts are in `rules.host_checks`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import median

from firesteel.facts.host.gpu_reading import GpuReading, parse_gpu_readings
from firesteel.facts.host.host import Meminfo, parse_meminfo
from firesteel.facts.host.memory_sample import GpuProcess, Pressure, parse_gpu_processes, parse_pressure
from firesteel.facts.host.network import Interface, parse_interfaces
from firesteel.facts.host.probe import Probe, Section
from firesteel.values import Value

_SPARKS = re.compile(r"GB10|DGX.Spark|GX10|ZGX|PGX|EdgeXpert|GN100|AI TOP ATOM", re.I)
"""Names of NVIDIA's machine and its siblings in `product_name` and `product_family`."""
BUSY_PERCENT = 50
"""From this use of the GPU on, its clock says something."""


class Unit(Value):
    """A systemd unit."""

    name: str
    active: str
    enabled: str
    path: str


class DiskUse(Value):
    purpose: str
    """`hf` (the Hub cache), `own` (FIRESTEEL_HOME), `docker`, `root`."""
    path: str
    device: str
    kind: str
    """Of its file system: ext4, nfs4."""
    total_bytes: int
    free_bytes: int
    mount: str

    @property
    def block(self) -> str:
        """`nvme0n1` of `/dev/nvme0n1p2`; the name in `/sys/block`."""
        name = self.device.rpartition("/")[2]
        return re.sub(r"p\d+$", "", name) if name.startswith(("nvme", "mmc")) else name.rstrip("0123456789")


class ProcessRow(Value):
    pid: int
    parent: int
    user: str
    resident_bytes: int
    age_s: int
    name: str


class HostMeasurement(Value):
    """A figure of `doctor --measure`."""

    name: str
    value: float
    unit: str
    day: str


class HostFacts(Value):
    probe: Probe
    product: str
    is_spark: bool
    user: str
    uid: int | None
    kernel: str
    """`6.17.0-1014-nvidia`"""
    memory: Meminfo | None
    meminfo: Mapping[str, int]
    """Every size in `/proc/meminfo`, in bytes."""
    pressure: Pressure | None
    gpu: tuple[GpuReading, ...]
    """Read several times, the first first."""
    gpu_processes: tuple[GpuProcess, ...] | None
    interfaces: tuple[Interface, ...]
    units: Mapping[str, Unit]
    disks: tuple[DiskUse, ...]
    processes: tuple[ProcessRow, ...]
    packages: Mapping[str, str]
    measured: Mapping[str, HostMeasurement] = {}

    @property
    def rails(self) -> tuple[Interface, ...]:
        return tuple(interface for interface in self.interfaces if interface.is_rail)

    @property
    def cabled_rails(self) -> tuple[Interface, ...]:
        """The rails of ports with a cable: where one of a port's rails has a carrier, both should."""
        ports = {rail.port for rail in self.rails if rail.has_carrier}
        return tuple(rail for rail in self.rails if rail.port in ports)

    @property
    def busy(self) -> tuple[GpuReading, ...]:
        return tuple(reading for reading in self.gpu if (reading.use_percent or 0) >= BUSY_PERCENT)

    @property
    def driver(self) -> str | None:
        return self.gpu[0].driver if self.gpu else self.loaded_driver

    @property
    def loaded_driver(self) -> str | None:
        match = re.search(r"Kernel Module.*?\s(\d{3}\.\d+(?:\.\d+)?)\s", self.probe.text(_NVIDIA) + " ")
        return match[1] if match else self.value("sys/module/nvidia/version")

    @property
    def bios(self) -> str | None:
        return self.value("sys/class/dmi/id/bios_version")

    def value(self, path: str) -> str | None:
        """A file of one line."""
        for section in ("kernel", "dmi", "block", "cpu", "sensors", "net", "rdma"):
            if path in (values := self.probe.values(section)):
                return values[path]
        return None

    def disk(self, purpose: str) -> DiskUse | None:
        return next((disk for disk in self.disks if disk.purpose == purpose), None)

    def link(self, path: str) -> str | None:
        """Where a symbolic link points."""
        match = re.search(rf"^{re.escape(path)} -> (.+)$", self.probe.text("links"), re.M)
        return match[1] if match else None

    def setting(self, section: str, key: str) -> tuple[str, str] | None:
        """The last `KEY=VALUE` of configuration files: its value, and the line with its file."""
        found = None
        for line in self.probe.lines(section):
            _, _, text = line.partition(":")
            name, equals, value = text.partition("=")
            if equals and name.strip() == key:
                found = (value.strip(), line)
        return found


_NVIDIA = "proc/driver/nvidia/version"


def host_facts(probe: Probe, measured: Mapping[str, HostMeasurement] | None = None) -> HostFacts:
    gpu = parse_gpu_readings(probe.text("gpu"))
    dmi = probe.values("dmi")
    names = [
        dmi.get(f"sys/class/dmi/id/{name}", "") for name in ("sys_vendor", "product_family", "product_name")
    ]
    text = probe.text("proc/meminfo")
    try:
        memory = parse_meminfo(text)
    except ValueError:
        memory = None
    nameless = f"a machine with {gpu[0].name}" if gpu else "unknown machine"
    uid = re.match(r"uid=(\d+)", probe.text("id"))
    uname = probe.text("uname").split()
    return HostFacts(
        probe=probe,
        product=" ".join(dict.fromkeys(name for name in names if name)) or nameless,
        is_spark=any("GB10" in reading.name for reading in gpu) or bool(_SPARKS.search(" ".join(names[1:]))),
        user=probe.text("user").strip(),
        uid=int(uid[1]) if uid else None,
        kernel=uname[1] if len(uname) > 1 else "",
        memory=memory,
        meminfo={
            name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d{1,15}) kB$", text, re.M)
        },
        pressure=parse_pressure(probe.text("proc/pressure/memory")),
        gpu=gpu,
        gpu_processes=_gpu_processes(probe),
        interfaces=parse_interfaces(probe),
        units=_units(probe.text("units")),
        disks=tuple(_disks(probe.text("disks"))),
        processes=tuple(_processes(probe.text("processes"))),
        packages=dict(row.split(" ", 1) for row in probe.lines("packages") if " " in row),
        measured=measured or _measured(probe),
    )


_MEASURED = r"^([^|\n]+)\|(\d+(?:\.\d+)?(?:e\+\d\d)?)\|([^|\n]*)\|([^|\n]*)$"


def _measured(probe: Probe) -> dict[str, HostMeasurement]:
    """The section `measured`: `NAME|VALUE|UNIT|DAY`."""
    rows = re.findall(_MEASURED, probe.text("measured"), re.M)
    return {name: HostMeasurement(name, float(value), unit, day) for name, value, unit, day in rows}


def measured_section(figures: Mapping[str, HostMeasurement]) -> Section:
    rows = (f"{each.name}|{each.value:.6g}|{each.unit}|{each.day}" for each in figures.values())
    return Section("\n".join(rows))


def _gpu_processes(probe: Probe) -> tuple[GpuProcess, ...] | None:
    section = probe.sections.get("gpu-processes")
    return parse_gpu_processes(section.text) if section and section.code == 0 else None


def _units(text: str) -> dict[str, Unit]:
    found: dict[str, Unit] = {}
    for block in re.split(r"\n\s*\n", text):
        rows = dict(row.split("=", 1) for row in block.splitlines() if "=" in row)
        if (name := rows.get("Id")) and rows.get("LoadState") != "not-found":
            found[name] = Unit(
                name,
                rows.get("ActiveState", ""),
                rows.get("UnitFileState", ""),
                rows.get("FragmentPath", ""),
            )
    return found


def _disks(text: str) -> list[DiskUse]:
    pattern = r"^(\w+)\|([^|]*)\|(\S+)\s+(\S+)\s+(\d+)\s+\d+\s+(\d+)\s+\S+\s+(.+)$"
    return [
        DiskUse(purpose, path, device, kind, int(total) * 1024, int(free) * 1024, mount)
        for purpose, path, device, kind, total, free, mount in re.findall(pattern, text, re.M)
    ]


def _processes(text: str) -> list[ProcessRow]:
    rows = re.findall(r"^\s*(\d+)\s+(\d+)\s+(\S+)\s+(\d+)\s+(\d+)\s+(.+?)\s*$", text, re.M)
    return [
        ProcessRow(int(pid), int(parent), user, int(rss) * 1024, int(age), name)
        for pid, parent, user, rss, age, name in rows
    ]


def busy_clock_mhz(readings: tuple[GpuReading, ...]) -> float | None:
    """The middle of the clocks that were read while the GPU was busy."""
    clocks = [reading.clock_mhz for reading in readings if reading.clock_mhz is not None]
    return median(clocks) if clocks else None


def show_figure(figure: HostMeasurement) -> str:
    """`2.31 GB/s`, `54 µs`."""
    return f"{figure.value / 1e9:.2f} GB/s" if figure.unit == "B/s" else f"{figure.value:.0f} {figure.unit}"
