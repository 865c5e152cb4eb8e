"""Network interfaces of a host, and the rails of its ConnectX-7: what a cluster's traffic goes over. Pure.

A Spark has two QSFP ports. Linux shows each as two interfaces with an RDMA device each ("rails"), because two
PCIe links of four lanes feed it; both rails together carry the 200 Gb/s of a cable.

    https://www.servethehome.com/the-nvidia-gb10-connectx-7-200gbe-networking-is-really-different/
    https://github.com/NVIDIA/dgx-spark-playbooks                                       both seen 2026-11-15
"""

from __future__ import annotations

import ipaddress
import re

from firesteel.facts.host.probe import Probe
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
    addresses, is_dynamic = _addresses(probe, name)
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
        is_dynamic=is_dynamic,
        rdma=rdma,
        persisted_by=_owners(probe, name, addresses),
    )


def _addresses(probe: Probe, name: str) -> tuple[tuple[str, ...], bool]:
    pattern = rf"^\d+: {re.escape(name)}(?:@\S+)?\s+inet (\d+\.\d+\.\d+\.\d+/\d+)(.*)$"
    rows = re.findall(pattern, probe.text("addresses"), re.M)
    return tuple(address for address, _ in rows if _is_address(address)), any(
        " dynamic" in rest for _, rest in rows
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Interface(text)
    except ValueError:
        return False
    return True


def _owners(probe: Probe, name: str, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Who sets this interface up: files that name it or its address, and NetworkManager's connection.

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
