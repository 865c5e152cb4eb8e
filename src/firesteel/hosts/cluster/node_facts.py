"""What a node is, as the probe read it, and which of its interfaces join it to the others. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Interface, IPv4Network
from itertools import combinations

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
