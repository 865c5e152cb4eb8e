"""What only two hosts together show: subnets, MTU both ways, bandwidth, clocks. Pure.

Sources: reference to NVIDIA's playbooks connect-two-sparks (2026-07-21) for the subnets and the pass mark,
eugr/spark-vllm-docker docs/NETWORKING.md for the MTU, NVIDIA/dgx-spark-playbooks PR 108 (2026-08-24) for the
degraded link; all seen 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

from firesteel.hosts.cluster.node_facts import Link, NodeFacts, best_link
from firesteel.values import Value

Level = Literal["good", "note", "warn", "stop"]
MAX_SKEW_S = 2.0
JUMBO_MTU = 9000
SLOW_RTT_MS = 1.0
_PLAYBOOK = "NVIDIA dgx-spark-playbooks, connect-two-sparks, 2026-07-21"
_NETWORKING = "eugr/spark-vllm-docker docs/NETWORKING.md, 2026-07"
_DEGRADED = "NVIDIA/dgx-spark-playbooks PR 108, 2026-08-24"


class PairFinding(Value):
    check: str
    level: Level
    hosts: tuple[str, ...]
    text: str
    evidence: str = ""
    next: str = ""
    source: str = ""


class Reached(Value):
    """What one direction of a link did."""

    rtt_ms: float | None = None
    small_packet: str | None = None
    whole_packet: str | None = None
    gbit_per_s: float | None = None
    lost: int = 0
    """Of 100 small packets."""
    error: str | None = None


Tried = Mapping[tuple[str, str, str], Reached]
"""By (from host, to host, address)."""


def judge_pairs(
    facts: Mapping[str, NodeFacts], found: Sequence[Link], tried: Tried, skews_s: Mapping[str, float]
) -> tuple[PairFinding, ...]:
    findings = [
        *_connected(facts, found), *_rails(facts), *_same_port(facts), *_duplicates(facts),
        *_reached(found, tried), *_clocks(skews_s), *_processors(facts),
    ]  # fmt: skip
    order: dict[Level, int] = {"stop": 0, "warn": 1, "note": 2, "good": 3}
    return tuple(sorted(findings, key=lambda finding: order[finding.level]))


def _connected(facts: Mapping[str, NodeFacts], found: Sequence[Link]) -> Iterator[PairFinding]:
    for one, other in combinations(facts, 2):
        link, pair = best_link(found, one, other), (one, other)
        if link is None:
            yield PairFinding(
                "joined",
                "stop",
                pair,
                "no interface of one is in a subnet of the other",
                evidence=f"{one}: {_addresses(facts[one])}; {other}: {_addresses(facts[other])}",
                next="firesteel cluster check --propose, for addresses in one subnet",
                source=_PLAYBOOK,
            )
        elif not link.is_fast:
            yield PairFinding(
                "joined",
                "warn",
                pair,
                "an ordinary network joins them: no rail of one is in a subnet of the other",
                evidence=f"{link.one_interface.name} and {link.other_interface.name}",
                next="firesteel cluster check --propose, for addresses of the rails",
                source=_PLAYBOOK,
            )
        else:
            rails = [joint for joint in found if joint.is_fast and {joint.one, joint.other} == {*pair}]
            text = f"joined by {len(rails)} rail{'s' if len(rails) > 1 else ''}"
            ends = (f"{rail.one_interface.address}-{rail.other_interface.address}" for rail in rails)
            yield PairFinding("joined", "good", pair, text, evidence=", ".join(ends))


def _addresses(facts: NodeFacts) -> str:
    shown = [f"{each.name} {each.address}" for each in facts.interfaces if each.address and each.name != "lo"]
    return ", ".join(shown) or "no address"


def _rails(facts: Mapping[str, NodeFacts]) -> Iterator[PairFinding]:
    """Both rails of a cabled port up, addressed, in different subnets."""
    for name, node in facts.items():
        cabled = [rail for rail in node.rails if rail.has_carrier]
        bare = [rail.name for rail in cabled if rail.address is None]
        subnets = [rail.subnet for rail in cabled if rail.subnet]
        if bare:
            yield PairFinding(
                "rails-addressed",
                "warn",
                (name,),
                f"{', '.join(bare)} has a cable and no address, so half of the link is not used",
                next="firesteel cluster check --propose",
                source=_PLAYBOOK,
            )
        if len(set(subnets)) < len(subnets):
            yield PairFinding(
                "rails-subnets",
                "stop",
                (name,),
                "two rails are in the same subnet: both then send by one",
                evidence=", ".join(f"{rail.name} {rail.address}" for rail in cabled),
                next="firesteel cluster check --propose",
                source=_PLAYBOOK,
            )
        if cabled and node.rdma and len(node.hcas) < len(cabled):
            yield PairFinding(
                "rdma-active",
                "warn",
                (name,),
                f"{len(cabled)} rails have a cable and {len(node.hcas)} RDMA devices are active",
                evidence=", ".join(f"{d.name} {d.state}" for d in node.rdma),
                next="ibv_devinfo, on that host",
            )


def _same_port(facts: Mapping[str, NodeFacts]) -> list[PairFinding]:
    """Of two: three may be a ring, from port 0 of each to port 1 of the next."""
    ports = {
        name: {rail.name.rpartition("np")[2] for rail in node.rails if rail.has_carrier}
        for name, node in facts.items()
    }
    one, other = (*ports.values(), set(), set())[:2]
    if len(facts) != 2 or not one or not other or one & other:
        return []
    shown = ", ".join(f"port {'/'.join(sorted(used))} of {name}" for name, used in ports.items())
    return [
        PairFinding(
            "same-port",
            "note",
            tuple(facts),
            f"the cable is in {shown}: files for one host do not fit the other",
            next="plug it into the same port of both",
            source=_PLAYBOOK,
        )
    ]


def _duplicates(facts: Mapping[str, NodeFacts]) -> list[PairFinding]:
    owners: dict[str, list[str]] = {}
    for name, node in facts.items():
        for interface in node.interfaces:
            if interface.address and not interface.address.startswith(("127.", "172.17.", "10.88.")):
                owners.setdefault(interface.address, []).append(name)
    return [
        PairFinding(
            "address-unique",
            "stop",
            tuple(names),
            f"{address} belongs to several hosts",
            next="give one of them another address",
        )
        for address, names in owners.items()
        if len(set(names)) > 1
    ]


def _reached(found: Sequence[Link], tried: Tried) -> Iterator[PairFinding]:
    for link in found:
        for one, other in ((link.one, link.other), (link.other, link.one)):
            if reached := tried.get((one, other, link.interface_of(other).address or "")):
                yield from _direction(link, one, other, reached)


def _direction(link: Link, one: str, other: str, reached: Reached) -> Iterator[PairFinding]:
    mine, its = link.interface_of(one), link.interface_of(other)
    way, pair = f"{one} to {other} over {its.address}", (one, other)
    if reached.error or reached.small_packet != "ok":
        what = "port" if reached.error else "datagrams"
        yield PairFinding(
            "reachable",
            "stop",
            pair,
            f"{way}: {what} not reached",
            evidence=reached.error or f"a packet of 64 bytes: {reached.small_packet}",
            next=f"on {other}: sudo ufw allow in on {its.name}",
        )
        return
    if reached.whole_packet and reached.whole_packet != "ok":
        yield PairFinding(
            "mtu",
            "stop",
            pair,
            f"{way}: a packet of {mine.mtu} bytes does not arrive",
            evidence=f"MTU {mine.mtu} on {one} {mine.name}, {its.mtu} on {other} {its.name}",
            next=f"set both, and the switch between them, to {JUMBO_MTU}",
            source=_NETWORKING,
        )
    elif link.is_fast and (mine.mtu or 0) < JUMBO_MTU:
        text = f"{way}: MTU {mine.mtu}; jumbo frames ({JUMBO_MTU}) are usual on rails"
        yield PairFinding("mtu", "note", pair, text, "", f"set both ends to {JUMBO_MTU}", _NETWORKING)
    if link.is_fast and (reached.rtt_ms or 0) > SLOW_RTT_MS:
        text = f"{way}: {reached.rtt_ms:.2f} ms; every token waits for the link several times a layer"
        yield PairFinding("latency", "warn", pair, text, next=f"look for load on {other}: top")
    if reached.lost:
        text = f"{way}: {reached.lost} of 100 small packets were lost"
        yield PairFinding("loss", "warn", pair, text, next="try another cable or port")
    if reached.gbit_per_s is not None:
        yield _bandwidth(link, way, pair, reached)


def _bandwidth(link: Link, way: str, pair: tuple[str, ...], reached: Reached) -> PairFinding:
    """One TCP stream by Python does not fill a rail: only what is far below says something."""
    speed, sold = reached.gbit_per_s or 0.0, (link.one_interface.speed_mbps or 0) / 1000
    rtt = f", {reached.rtt_ms:.2f} ms" if reached.rtt_ms is not None else ""
    text = f"{way}: {speed:.1f} Gb/s by one TCP stream{rtt}"
    if link.is_fast and sold >= 100 and speed < 5:
        return PairFinding(
            "bandwidth", "warn", pair, f"{text}; a rail that was started badly does 13 Gb/s by any test",
            next="ib_write_bw on both; if that is below 25 Gb/s, take the power away from both for a minute",
            source=_DEGRADED,
        )  # fmt: skip
    return PairFinding("bandwidth", "good", pair, text)


def _clocks(skews_s: Mapping[str, float]) -> list[PairFinding]:
    return [
        PairFinding(
            "clock",
            "warn",
            (name,),
            f"the clock of {name} is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}",
            next="sudo timedatectl set-ntp true",
        )
        for name, skew in skews_s.items()
        if abs(skew) > MAX_SKEW_S
    ] or [PairFinding("clock", "good", tuple(skews_s), "clocks agree")]


def _processors(facts: Mapping[str, NodeFacts]) -> list[PairFinding]:
    """No image runs on both kinds. What else should be equal: `rules.host.findings`."""
    if len({node.machine for node in facts.values()}) == 1:
        return []
    shown = ", ".join(f"{name} {node.machine}" for name, node in facts.items())
    return [PairFinding("processor", "stop", tuple(facts), f"processors differ: {shown}")]
