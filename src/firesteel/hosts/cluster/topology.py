"""What a node is, as the probe read it, and how hosts are joined. Pure.

Interfaces in one subnet make a `Link`. Together they have a kind (two Sparks on a cable, a switch, a ring),
are drawn as text and as SVG, and get addresses proposed for rails that have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Interface, IPv4Network
from itertools import combinations
from typing import Literal
from xml.sax.saxutils import escape

from firesteel.values import Value

RAIL_NAME = re.compile(r"en[pP]\d?p?1s0f\d+np\d+\Z")
"""The four interfaces of a GB10's ConnectX-7: enp1s0f0np0, enP2p1s0f0np0 and those of port 1."""


class NodeInterface(Value):
    name: str
    mtu: int | None = None
    state: str | None = None
    has_carrier: bool = False
    speed_mbps: int | None = None
    port: str = ""
    """`phys_switch_id/phys_port_name`: equal for the two rails of one port."""
    pcie: str = ""
    firmware: str | None = None
    address: str | None = None
    netmask: str | None = None
    is_wireless: bool = False
    is_virtual: bool = False

    @property
    def subnet(self) -> IPv4Network | None:
        if not self.address or not self.netmask:
            return None
        return IPv4Interface(f"{self.address}/{self.netmask}").network

    @property
    def is_rail(self) -> bool:
        return bool(RAIL_NAME.match(self.name))


class RdmaDevice(Value):
    name: str
    state: str | None = None
    rate: str | None = None
    interface: str | None = None
    roce_v2_ipv4_gids: tuple[int, ...] = ()

    @property
    def is_active(self) -> bool:
        return (self.state or "").endswith("ACTIVE")


class NodeFacts(Value):
    hostname: str
    time_s: float
    kernel: str
    python: str
    machine: str
    home: str = ""
    """The folder of the user that ssh logs in as."""
    driver: str | None = None
    bios: str | None = None
    product: str | None = None
    docker: str | None = None
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    disk_free_bytes: int = 0
    cores: int = 1
    interfaces: tuple[NodeInterface, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()

    @property
    def rails(self) -> tuple[NodeInterface, ...]:
        """The interfaces of the fast ports, the cabled ones first."""
        rails = [interface for interface in self.interfaces if interface.is_rail]
        return tuple(sorted(rails, key=lambda rail: (not rail.has_carrier, rail.address is None, rail.name)))

    @property
    def hcas(self) -> tuple[RdmaDevice, ...]:
        """The RDMA devices of rails with a cable; where no rail is known, all that are active."""
        cabled = {rail.name for rail in self.rails if rail.has_carrier}
        return tuple(
            device
            for device in self.rdma
            if device.is_active and (device.interface in cabled or not self.rails)
        )


class Link(Value):
    """Two interfaces in one subnet, on two hosts."""

    one: str
    one_interface: NodeInterface
    other: str
    other_interface: NodeInterface

    @property
    def is_fast(self) -> bool:
        return self.one_interface.is_rail and self.other_interface.is_rail

    def interface_of(self, name: str) -> NodeInterface:
        return self.one_interface if name == self.one else self.other_interface


def links(facts: dict[str, NodeFacts]) -> tuple[Link, ...]:
    """Every pair of interfaces that can reach each other directly, rails first."""
    found = [
        Link(one, mine, other, its)
        for one, other in combinations(facts, 2)
        for mine in _joinable(facts[one])
        for its in _joinable(facts[other])
        if mine.subnet and mine.subnet == its.subnet
    ]
    return tuple(sorted(found, key=lambda link: (not link.is_fast, link.one, link.other)))


def _joinable(facts: NodeFacts) -> Sequence[NodeInterface]:
    """A container bridge has the same subnet on every host and joins none."""
    return [
        interface
        for interface in facts.interfaces
        if interface.address
        and interface.has_carrier
        and not interface.name.startswith(("lo", "docker", "br-", "veth", "virbr", "tailscale", "wg"))
    ]


def best_link(found: Sequence[Link], one: str, other: str) -> Link | None:
    """The fast one where there is one."""
    return next((link for link in found if {link.one, link.other} == {one, other}), None)


# --- how they are joined ---

TopologyKind = Literal["direct", "switch", "ring", "ordinary network", "apart"]
_FIRST_SUBNETS = (100, 101)
"""192.168.100.0/24 and 192.168.101.0/24 for the first and the second rail, as in NVIDIA's playbook."""


def kind(facts: Mapping[str, NodeFacts], found: Sequence[Link]) -> TopologyKind:
    """Two hosts on rails may have a switch in between: nothing shows it, and nothing depends on it."""
    names, fast = list(facts), [link for link in found if link.is_fast]
    if not fast:
        return "ordinary network" if found else "apart"
    if len(names) == 2:
        return "direct"
    ports = {name: {link.interface_of(name).port or link.interface_of(name).name for link in fast
                    if name in (link.one, link.other)} for name in names}  # fmt: skip
    subnets = {link.one_interface.subnet for link in fast}
    is_ring = all(len(ports[name]) >= 2 for name in names) and len(subnets) >= len(names)
    return "ring" if is_ring else "switch"


def text_drawing(facts: Mapping[str, NodeFacts], found: Sequence[Link]) -> str:
    lines = [f"{len(facts)} hosts, {kind(facts, found)}"]
    for link in found:
        if link.is_fast or not any(other.is_fast for other in found):
            one, other = link.one_interface, link.other_interface
            speed = f"{(one.speed_mbps or 0) // 1000}G " if (one.speed_mbps or 0) > 0 else ""
            lines.append(
                f"  {link.one} {one.name} {one.address} ==[{speed}mtu {one.mtu}/{other.mtu}]== "
                f"{other.address} {other.name} {link.other}"
            )
    return "\n".join(lines)


def svg_drawing(facts: Mapping[str, NodeFacts], found: Sequence[Link]) -> str:
    """Hosts as boxes side by side, a line for each link."""
    step, top = 260, 40
    centre = {name: 110 + index * step for index, name in enumerate(facts)}
    width, shown = step * len(facts) - 40, [link for link in found if link.is_fast] or list(found)
    height = 150 + 34 * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>'
    ]
    for name, node in facts.items():
        x = centre[name]
        parts.append(
            f'<rect x="{x - 80}" y="{top}" width="160" height="60" rx="6" fill="#eef" stroke="#447"/>'
        )
        parts.append(
            f'<text x="{x}" y="{top + 26}" text-anchor="middle" font-weight="bold">{escape(name)}</text>'
        )
        label = escape(node.product or node.machine)
        parts.append(f'<text x="{x}" y="{top + 44}" text-anchor="middle">{label}</text>')
    for index, link in enumerate(shown):
        y, one, other = top + 84 + 34 * index, centre[link.one], centre[link.other]
        parts.append(f'<path d="M{one} {top + 60} V{y} H{other} V{top + 60}" fill="none" stroke="#447"/>')
        label = f"{link.one_interface.address} - {link.other_interface.address}, mtu {link.one_interface.mtu}"
        parts.append(f'<text x="{(one + other) / 2}" y="{y - 4}" text-anchor="middle">{escape(label)}</text>')
    return "".join([*parts, "</svg>\n"])


def proposed_addresses(facts: Mapping[str, NodeFacts]) -> dict[str, str]:
    """By host, the netplan file that gives every cabled rail without an address one.

    The two rails of a port get different subnets. Rails that have an address keep it, and nothing is proposed
    for a host whose rails all have one.
    """
    files: dict[str, str] = {}
    for index, (name, node) in enumerate(facts.items()):
        bare = [rail for rail in node.rails if rail.has_carrier and not rail.address]
        lines = [f"    {rail.name}: {_netplan(rail, 10 + index)}" for rail in bare]
        if lines:
            files[name] = "\n".join(["network:", "  version: 2", "  ethernets:", *lines, ""])
    return files


def _netplan(rail: NodeInterface, last: int) -> str:
    third = _FIRST_SUBNETS[rail.name.startswith("enP2")]  # the second PCI domain: the port's second rail
    return f"{{dhcp4: no, dhcp6: no, link-local: [], mtu: 9000, addresses: [192.168.{third}.{last}/24]}}"
