"""A host as `doctor` sees it: the facts in a probe, with the rails of a ConnectX-7. Pure.

The traffic of a cluster goes over the rails. A Spark has two QSFP ports. Linux shows each as two
interfaces with an RDMA device each ("rails"), because two PCIe links of four lanes feed it; both rails
together carry the 200 Gb/s of a cable.

    https://www.servethehome.com/the-nvidia-gb10-connectx-7-200gbe-networking-is-really-different/
    https://github.com/NVIDIA/dgx-spark-playbooks                                       both seen 2026-11-15

    facts = HostFacts.of(Probe.parse(output))

What the probe does not contain is None or empty. Judgements over these facts are in `rules.host`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from statistics import median

from firesteel.facts.host.gpus import GpuReading
from firesteel.facts.host.hardware import Meminfo
from firesteel.facts.host.memory import GpuProcess, Pressure, parse_gpu_processes, parse_pressure
from firesteel.facts.host.probe import Probe, Section
from firesteel.values import Value

_MELLANOX = "0x15b3"
_RAIL_NAME = re.compile(r"en[pP]\d+(?:p\d+)?s\d+f\d+np(\d+)")
_NETPLAN_NM = re.compile(r"(?:etc|run)/netplan/90-NM-")


class Rdma(Value):
    device: str
    state: str
    rate: str
    firmware: str
    has_ipv4_gid: bool
    """A RoCE v2 GID with an IPv4 address: what NCCL uses."""


class Interface(Value):
    name: str
    is_up: bool
    has_carrier: bool
    mtu: int | None
    speed_mbps: int | None
    port: str | None
    """`p0` or `p1` of a ConnectX-7; None: another card."""
    switch: str | None
    pcie_speed: str | None
    pcie_width: int | None
    is_wireless: bool
    addresses: tuple[str, ...]
    """IPv4 with prefix length: `192.168.100.10/24`."""
    is_dynamic: bool
    """An address of it came by DHCP."""
    rdma: Rdma | None
    persisted_by: tuple[str, ...]
    """Files and connections that configure it; empty: nothing that can be read does."""

    @property
    def is_rail(self) -> bool:
        return self.port is not None

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network, ...]:
        return tuple(ipaddress.IPv4Interface(address).network for address in self.addresses)


def parse_interfaces(probe: Probe) -> tuple[Interface, ...]:
    values = probe.values("net")
    # The rails of domain 0 (enp1...) before their twins in domain 2 (enP2p1...).
    names = sorted(
        {path.split("/")[3] for path in values if path.startswith("sys/class/net/")}, key=str.lower
    )
    rdma = _rdma_devices(probe)
    return tuple(_interface(name, values, probe, rdma.get(name)) for name in names)


def _interface(name: str, values: dict[str, str], probe: Probe, rdma: Rdma | None) -> Interface:
    def value(path: str) -> str:
        return values.get(f"sys/class/net/{name}/{path}", "")

    match = _RAIL_NAME.fullmatch(name)
    is_rail = value("device/vendor") == _MELLANOX or match is not None
    port = value("phys_port_name") or (f"p{match[1]}" if match else "p0")
    pattern = rf"^\d+: {re.escape(name)}(?:@\S+)?\s+inet (\d+\.\d+\.\d+\.\d+/\d+)(.*)$"
    rows = re.findall(pattern, probe.text("addresses"), re.M)
    addresses = tuple(address for address, _ in rows if _is_address(address))
    return Interface(
        name,
        is_up=value("operstate") == "up",
        has_carrier=value("carrier") == "1",
        mtu=_int(value("mtu")),
        speed_mbps=_int(value("speed")),
        port=port if is_rail else None,
        switch=value("phys_switch_id") or None,
        pcie_speed=value("device/current_link_speed") or None,
        pcie_width=_int(value("device/current_link_width")),
        is_wireless=name.startswith("wl") or any(f"net/{name}/wireless/" in path for path in values),
        addresses=addresses,
        is_dynamic=any(" dynamic" in rest for _, rest in rows),
        rdma=rdma,
        persisted_by=_owners(probe, name, addresses),
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Interface(text)
    except ValueError:
        return False
    return True


def _owners(probe: Probe, name: str, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """What sets this interface up: files that name it or its address, and NetworkManager's connection.

    Netplan's files are readable only by root, so a connection may be all that is seen.
    """
    hosts = [address.partition("/")[0] for address in addresses]
    found: list[str] = []
    for line in probe.lines("network"):
        path, _, text = line.partition(":")
        named = re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text)
        if named or any(re.search(rf"(?<![\d.]){re.escape(host)}(?![\d.])", text) for host in hosts):
            found.append(path)
    for line in probe.lines("connections"):
        fields = re.split(r"(?<!\\):", line)
        if len(fields) >= 4 and fields[1] == name:
            found.append(f"NetworkManager connection `{fields[0]}` ({fields[3] or 'not saved'})")
    return tuple(dict.fromkeys(found))


def _rdma_devices(probe: Probe) -> dict[str, Rdma]:
    """By interface."""
    values = probe.values("rdma")
    found: dict[str, Rdma] = {}
    for path in values:
        match = re.fullmatch(r"sys/class/infiniband/([^/]+)/device/net/([^/]+)/mtu", path)
        if match:
            device, folder = match[1], f"sys/class/infiniband/{match[1]}"
            port = f"{folder}/ports/1"
            found[match[2]] = Rdma(
                device,
                values.get(f"{port}/state", ""),
                values.get(f"{port}/rate", ""),
                values.get(f"{folder}/fw_ver", ""),
                any(
                    re.fullmatch(r"0000:0000:0000:0000:0000:ffff:[0-9a-f]{4}:[0-9a-f]{4}", gid)
                    and values.get(path.replace("/gids/", "/gid_attrs/types/"), "").endswith("RoCE v2")
                    for path, gid in values.items()
                    if path.startswith(f"{port}/gids/")
                ),
            )
    return found


def _int(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def is_networkmanager_netplan(path: str) -> bool:
    """A netplan file that NetworkManager writes and would overwrite."""
    return bool(_NETPLAN_NM.match(path))


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

    def __str__(self) -> str:
        """`2.31 GB/s`, `54 µs`."""
        return f"{self.value / 1e9:.2f} GB/s" if self.unit == "B/s" else f"{self.value:.0f} {self.unit}"


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

    @classmethod
    def of(cls, probe: Probe, measured: Mapping[str, HostMeasurement] | None = None) -> HostFacts:
        gpu = GpuReading.parse(probe.text("gpu"))
        dmi = probe.values("dmi")
        names = [
            dmi.get(f"sys/class/dmi/id/{name}", "")
            for name in ("sys_vendor", "product_family", "product_name")
        ]
        text = probe.text("proc/meminfo")
        try:
            memory = Meminfo.parse(text)
        except ValueError:
            memory = None
        has_gb10 = any("GB10" in reading.name for reading in gpu)
        nameless = f"a machine with {gpu[0].name}" if gpu else "unknown machine"
        uid = re.match(r"uid=(\d+)", probe.text("id"))
        uname = probe.text("uname").split()
        processes = probe.sections.get("gpu-processes")
        return cls(
            probe=probe,
            product=" ".join(dict.fromkeys(name for name in names if name)) or nameless,
            is_spark=has_gb10 or bool(_SPARKS.search(" ".join(names[1:]))),
            user=probe.text("user").strip(),
            uid=int(uid[1]) if uid else None,
            kernel=uname[1] if len(uname) > 1 else "",
            memory=memory,
            meminfo={
                name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d{1,15}) kB$", text, re.M)
            },
            pressure=parse_pressure(probe.text("proc/pressure/memory")),
            gpu=gpu,
            gpu_processes=parse_gpu_processes(processes.text) if processes and processes.code == 0 else None,
            interfaces=parse_interfaces(probe),
            units=_units(probe.text("units")),
            disks=tuple(_disks(probe.text("disks"))),
            processes=tuple(_processes(probe.text("processes"))),
            packages=dict(row.split(" ", 1) for row in probe.lines("packages") if " " in row),
            measured=measured or _measured(probe),
        )

    @property
    def rails(self) -> tuple[Interface, ...]:
        return tuple(interface for interface in self.interfaces if interface.is_rail)

    @property
    def cabled_rails(self) -> tuple[Interface, ...]:
        """The rails of ports with a cable: if one of a port's rails has a carrier, both should."""
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


_MEASURED = r"^([^|\n]+)\|(\d+(?:\.\d+)?(?:e\+\d\d)?)\|([^|\n]*)\|([^|\n]*)$"


def _measured(probe: Probe) -> dict[str, HostMeasurement]:
    """The section `measured`: `NAME|VALUE|UNIT|DAY`."""
    rows = re.findall(_MEASURED, probe.text("measured"), re.M)
    return {name: HostMeasurement(name, float(value), unit, day) for name, value, unit, day in rows}


def measured_section(figures: Mapping[str, HostMeasurement]) -> Section:
    rows = (f"{each.name}|{each.value:.6g}|{each.unit}|{each.day}" for each in figures.values())
    return Section("\n".join(rows))


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
