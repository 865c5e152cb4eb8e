"""Checks of the ConnectX-7 rails, the route, the ports and the firewall."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from itertools import combinations

from firesteel.facts.host.host_facts import HostFacts, Interface
from firesteel.rules.host.check import CheckVerdict, Judge, bad, good, skipped, unknown

_JUMBO = 9000
_FULL_MBPS = 200_000
_PCIE = ("32.0 GT/s PCIe", 4)
_NO_CABLE = "no cable in a QSFP port (without one the card is powered down)"
_PORTS = (8000, 29501, 6379, 50052, 2233)
_LINK_LOCAL = "169.254."
_DEGRADED_GBPS, _RAIL_GBPS = 30.0, 90.0
_NCCL_GBYTES_PER_S = 20.0


def rails_up(facts: HostFacts) -> CheckVerdict:
    rails = facts.cabled_rails
    if not rails:
        return skipped(_NO_CABLE)
    down = [rail for rail in rails if not rail.is_up or not rail.has_carrier]
    if down:
        state = f"operstate {'up' if down[0].is_up else 'down'}, carrier {int(down[0].has_carrier)}"
        return bad(f"/sys/class/net/{down[0].name}: {state}", name=down[0].name)
    # A port that shows only one rail, on a machine whose names are those of a Spark.
    ports = Counter(rail.port for rail in rails)
    alone = next((rail for rail in rails if facts.is_spark and ports[rail.port] == 1), None)
    if alone:
        line = f"{alone.name} is the only interface of port {alone.port}"
        return bad(line, name=f"the second rail of port {alone.port}")
    return good(f"{', '.join(rail.name for rail in rails)}: up")


def rails_addressed(facts: HostFacts) -> CheckVerdict:
    rails = facts.cabled_rails
    if not rails:
        return skipped(_NO_CABLE)
    missing = [rail for rail in rails if not rail.addresses]
    if missing:
        return bad(f"ip addr: {missing[0].name} has no IPv4 address", name=missing[0].name)
    many = next((rail for rail in rails if len(rail.addresses) > 1), None)
    if many:
        line = f"ip addr: {many.name} {' '.join(many.addresses)}"
        return bad(line, "note", name=f"{many.name} (which has several)")
    return good("; ".join(f"{rail.name} {rail.addresses[0]}" for rail in rails))


def rails_subnets(facts: HostFacts) -> CheckVerdict:
    addressed = [rail for rail in facts.cabled_rails if rail.addresses]
    if not addressed:
        return skipped("no rail has an address")
    everyone = [each for each in facts.interfaces if each.addresses and each.name != "lo"]
    for rail, other in combinations(everyone, 2):
        if not (rail.is_rail or other.is_rail):
            continue
        if any(one.overlaps(two) for one in rail.networks for two in other.networks):
            line = f"{rail.name} {rail.addresses[0]} and {other.name} {other.addresses[0]}"
            return bad(line, first=rail.name, second=other.name)
    return good("; ".join(f"{rail.name} {rail.networks[0]}" for rail in addressed))


def rail_routes(facts: HostFacts) -> CheckVerdict:
    """A route elsewhere, as narrow as a rail's subnet or narrower; a wider one loses to the rail's."""
    addressed = [rail for rail in facts.cabled_rails if rail.addresses]
    if not addressed:
        return skipped("no rail has an address")
    if facts.probe.lacks("routes"):
        return unknown("needs ip (sudo apt install iproute2)")
    for line in facts.probe.lines("routes"):
        if " proto kernel " in line:  # made from an address: `rails-subnets` compares these
            continue
        found = re.match(r"(?:unicast )?(\d+\.\d+\.\d+\.\d+(?:/\d+)?) .*?dev (\S+)", line)
        network = _network(found[1]) if found else None
        if found is None or network is None:
            continue
        for rail in addressed:
            if rail.name != found[2] and any(network.subnet_of(own) for own in rail.networks):
                row = re.sub(r" (?:linkdown|dead)\b", "", line.strip())
                return bad(f"ip route: {row}", name=rail.name, other=found[2], network=found[1], row=row)
    return good(f"no route takes traffic away from {', '.join(rail.name for rail in addressed)}")


def jumbo_frames(facts: HostFacts) -> CheckVerdict:
    rails = facts.cabled_rails
    if not rails:
        return skipped(_NO_CABLE)
    small = [rail for rail in rails if rail.mtu is not None and rail.mtu < _JUMBO]
    if small:
        return bad(
            f"/sys/class/net/{small[0].name}/mtu: {small[0].mtu}",
            name=", ".join(rail.name for rail in small),
            mtu=small[0].mtu,
        )
    return good("; ".join(f"{rail.name} mtu {rail.mtu}" for rail in rails))


def rails_speed(facts: HostFacts) -> CheckVerdict:
    rails = facts.cabled_rails
    if not rails:
        return skipped(_NO_CABLE)
    slow = next((rail for rail in rails if rail.speed_mbps and rail.speed_mbps < _FULL_MBPS), None)
    if slow:
        line = f"/sys/class/net/{slow.name}/speed: {slow.speed_mbps}"
        return bad(
            line, name=slow.name, what=f"the link runs at {(slow.speed_mbps or 0) // 1000} Gb/s, not 200"
        )
    narrow = next((rail for rail in rails if rail.pcie_width and _is_narrow(rail)), None)
    if narrow:
        line = (
            f"/sys/class/net/{narrow.name}/device: current_link_speed {narrow.pcie_speed}, "
            f"current_link_width {narrow.pcie_width}"
        )
        return bad(
            line, name=narrow.name, what=f"PCIe runs at {narrow.pcie_speed} x{narrow.pcie_width}, not x4"
        )
    if not any(rail.speed_mbps for rail in rails):
        return unknown("the driver reports no speed")
    widths = {f"{rail.pcie_speed} x{rail.pcie_width}" for rail in rails if rail.pcie_width}
    return good(f"{rails[0].speed_mbps} Mb/s, PCIe {', '.join(sorted(widths)) or 'not shown'}")


def rdma_state(facts: HostFacts) -> CheckVerdict:
    rails = facts.cabled_rails
    if not rails:
        return skipped(_NO_CABLE)
    if not facts.is_spark and not any(rail.rdma for rail in rails):
        return skipped("no RDMA device")
    for rail in rails:
        if rail.rdma is None:
            return bad(
                f"{rail.name} has no device in /sys/class/infiniband", name=rail.name, what="is missing"
            )
        if "ACTIVE" not in rail.rdma.state:
            line = f"/sys/class/infiniband/{rail.rdma.device}/ports/1/state: {rail.rdma.state}"
            return bad(line, name=rail.rdma.device, what="is not active")
        if not rail.rdma.has_ipv4_gid and rail.addresses:
            line = f"/sys/class/infiniband/{rail.rdma.device}/ports/1/gids: no RoCE v2 IPv4 entry"
            return bad(line, name=rail.rdma.device, what="has no RoCE v2 address for IPv4")
    return good("; ".join(f"{rail.rdma.device} {rail.rdma.state}" for rail in rails if rail.rdma))


def address_owner(facts: HostFacts) -> CheckVerdict:
    addressed = [rail for rail in facts.cabled_rails if rail.addresses]
    if not addressed:
        return skipped("no rail has an address")
    for rail in addressed:
        address = rail.addresses[0]
        if rail.is_dynamic or address.startswith(_LINK_LOCAL):
            how = "link-local" if address.startswith(_LINK_LOCAL) else "DHCP"
            return bad(f"ip addr: {rail.name} {address} ({how})", name=rail.name, what=f"comes by {how}")
        files = [owner for owner in rail.persisted_by if _outlives_boot(owner)]
        if rail.persisted_by and not files:
            line = f"{rail.name} {address}: {rail.persisted_by[0]}"
            return bad(line, name=rail.name, what="is kept only in /run, which a reboot empties")
        if not rail.persisted_by:
            if not _has_private_files(facts):
                line = (
                    f"ip addr: {rail.name} {address}; no file of netplan, NetworkManager or networkd has it"
                )
                return bad(line, name=rail.name, what="was set by hand and is lost at the next reboot")
            return unknown("needs sudo: netplan's files can be read only by root", f"{rail.name} {address}")
    return good("; ".join(f"{rail.name}: {rail.persisted_by[0]}" for rail in addressed))


def rails_bandwidth(facts: HostFacts) -> CheckVerdict:
    if not facts.cabled_rails:
        return skipped(_NO_CABLE)
    figures = [figure for name, figure in facts.measured.items() if name.startswith("rail_gbps")]
    nccl = [figure for name, figure in facts.measured.items() if name.startswith("nccl_")]
    if nccl and nccl[0].value < _NCCL_GBYTES_PER_S:
        line = f"{nccl[0].name} {nccl[0].value:.1f} GB/s on {nccl[0].day}"
        why = "half means one of two devices, an eighth TCP or an NCCL that is no release"
        return bad(line, what="NCCL moves", speed=f"{nccl[0].value * 8:.0f}", of="190", why=why)
    if not figures:
        return unknown("needs firesteel doctor --measure, with the other Spark as a node")
    slowest = min(figures, key=lambda figure: figure.value)
    line = f"{slowest.name} {slowest.value:.1f} Gb/s on {slowest.day}"
    if slowest.value < _DEGRADED_GBPS:
        why = "a degraded start of the ConnectX-7"
        return bad(line, "stop", what="a rail carries", speed=f"{slowest.value:.0f}", of="100", why=why)
    if slowest.value < _RAIL_GBPS:
        why = "about 55 means PCIe x2, less means MTU or TCP"
        return bad(line, what="a rail carries", speed=f"{slowest.value:.0f}", of="100", why=why)
    return good(line)


def default_route(facts: HostFacts) -> CheckVerdict:
    main = [line for line in facts.probe.lines("routes") if not re.search(r" table \w", line)]
    rows = re.findall(r"^default .*?dev (\S+)(?:.*?metric (\d+))?", "\n".join(main), re.M)
    if not rows:
        return (
            unknown("needs a default route (ip route)")
            if facts.probe.text("addresses")
            else unknown("needs ip (sudo apt install iproute2)")
        )
    name = min(rows, key=lambda row: int(row[1] or 0))[0]
    interface = next((each for each in facts.interfaces if each.name == name), None)
    line = f"ip route: default dev {name}"
    if interface and interface.is_rail:
        return bad(line, name=name, what="a rail of the cluster")
    return bad(line, name=name, what="Wi-Fi") if interface and interface.is_wireless else good(line)


def ports(facts: HostFacts) -> CheckVerdict:
    if facts.probe.lacks("listeners"):
        return unknown("needs ss (sudo apt install iproute2)")
    for line in facts.probe.lines("listeners"):
        fields = line.split()
        port = fields[3].rpartition(":")[2] if len(fields) > 3 else ""
        if port.isdigit() and int(port) in _PORTS:
            who = re.search(r'\("([^"]+)",pid=(\d+)', line)
            return bad(
                line, port=port, who=f"{who[1]} (pid {who[2]})" if who else "a process of another user"
            )
    return good(f"{', '.join(map(str, _PORTS))} are free")


def firewall(facts: HostFacts) -> CheckVerdict:
    section = facts.probe.sections.get("etc/ufw/ufw.conf")
    if section is None or section.code == 2:
        return good("ufw is not installed")
    if not re.search(r"^ENABLED=yes", section.text, re.M):
        return good("/etc/ufw/ufw.conf: ENABLED=no")
    if not facts.cabled_rails:
        return bad("/etc/ufw/ufw.conf: ENABLED=yes", "note", names="a network that should reach the model")
    names = " and ".join(rail.name for rail in facts.cabled_rails)
    return bad("/etc/ufw/ufw.conf: ENABLED=yes", names=names)


def rail_errors(facts: HostFacts) -> CheckVerdict:
    values = facts.probe.values("rdma")
    counters = {
        path: int(value) for path, value in values.items() if "hw_counters" in path and value.isdigit()
    }
    if not counters:
        return (
            skipped("no RDMA device shows counters")
            if not facts.cabled_rails
            else unknown("needs hw_counters")
        )
    worst = max(counters, key=lambda path: counters[path])
    line = f"{worst}: {counters[worst]}"
    return bad(line, count=counters[worst]) if counters[worst] > 1000 else good(line)


def _network(text: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError:
        return None


def _outlives_boot(owner: str) -> bool:
    """Netplan writes its connections into /run at every boot; others there are lost."""
    return "connection `netplan-" in owner or not re.search(r"\(/run/|^run/|not saved", owner)


def _is_narrow(rail: Interface) -> bool:
    speed, width = _PCIE
    return (rail.pcie_width or width) < width or (rail.pcie_speed or speed) != speed


def _has_private_files(facts: HostFacts) -> bool:
    """Netplan's files exist and could not be read."""
    names = [name for name in facts.probe.lines("names") if "netplan" in name or "NetworkManager" in name]
    read = {line.partition(":")[0] for line in facts.probe.lines("network")}
    return any(name not in read for name in names)


JUDGES: dict[str, Judge] = {
    "rails-up": rails_up,
    "rails-addressed": rails_addressed,
    "rails-subnets": rails_subnets,
    "rail-routes": rail_routes,
    "jumbo-frames": jumbo_frames,
    "rails-speed": rails_speed,
    "rdma-state": rdma_state,
    "address-owner": address_owner,
    "rails-bandwidth": rails_bandwidth,
    "rail-errors": rail_errors,
    "default-route": default_route,
    "ports": ports,
    "firewall": firewall,
}
