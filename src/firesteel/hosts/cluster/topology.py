"""How the hosts are joined: its kind, drawn as text and as SVG, and addresses for rails without. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal
from xml.sax.saxutils import escape

from firesteel.hosts.cluster.node_facts import Link, NodeFacts, NodeInterface

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
