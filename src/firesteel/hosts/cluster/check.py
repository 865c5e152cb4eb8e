"""`cluster check`: read every host at once, try every link both ways, judge. And the hosts of one start, so
read.

What only two hosts together show is judged without I/O (`judge_pairs`): subnets, MTU both ways, bandwidth,
clocks. Sources: reference to NVIDIA's playbooks connect-two-sparks (2026-07-21) for the subnets and the pass
mark, eugr/spark-vllm-docker docs/NETWORKING.md for the MTU, NVIDIA/dgx-spark-playbooks PR 108 (2026-08-24)
for the degraded link; all seen 2026-11-15.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

from firesteel.edge import ssh
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.hosts.cluster.nodes import Channel, ClusterNode
from firesteel.hosts.cluster.ranks import RankHost
from firesteel.hosts.cluster.topology import Link, NodeFacts, best_link, links
from firesteel.values import Value, from_json

_MEASURE_S = 0.5


class ClusterCheck(Value):
    facts: dict[str, NodeFacts]
    links: tuple[Link, ...]
    findings: tuple[PairFinding, ...]
    tried: Tried = {}

    @property
    def unreachable(self) -> tuple[str, ...]:
        return tuple(host for finding in self.findings if finding.check == "ssh" for host in finding.hosts)

    @property
    def stops(self) -> tuple[PairFinding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "stop")


async def read_facts(channels: Sequence[Channel]) -> tuple[dict[str, NodeFacts], dict[str, float]]:
    """Of every host, and by how much its clock is ahead of ours. Raises if one cannot be reached."""
    answers = await asyncio.gather(*(_facts_of(channel) for channel in channels))
    names = [channel.name for channel in channels]
    return (
        {name: facts for name, (facts, _) in zip(names, answers, strict=True)},
        {name: skew for name, (_, skew) in zip(names, answers, strict=True)},
    )


async def _facts_of(channel: Channel) -> tuple[NodeFacts, float]:
    await channel.prepare()
    before = time.time()
    document = await channel.ask("probe", "facts")
    facts, after = from_json(NodeFacts, document), time.time()
    # Read some time between the two: within that its clock says nothing.
    if facts.time_s < before:
        return facts, facts.time_s - before
    return facts, max(0.0, facts.time_s - after)


async def check_cluster(channels: Sequence[Channel], measures: bool = True) -> ClusterCheck:
    unreachable: list[PairFinding] = []
    reachable: list[Channel] = []
    for channel, problem in zip(
        channels, await asyncio.gather(*(_problem(channel) for channel in channels)), strict=True
    ):
        if problem is None:
            reachable.append(channel)
        else:
            unreachable.append(PairFinding("ssh", "stop", (channel.name,), problem.what, next=problem.next))
    facts, skews = await read_facts(reachable)
    found = links(facts)
    by_name = {channel.name: channel for channel in reachable}
    tried: dict[tuple[str, str, str], Reached] = {}
    for link in found:  # one after the other: two at once would share the bandwidth
        for one, other in ((link.one, link.other), (link.other, link.one)):
            address, mtu = link.interface_of(other).address or "", link.interface_of(one).mtu or 1500
            tried[one, other, address] = await _try_direction(
                by_name[one], by_name[other], address, mtu, _MEASURE_S if measures else 0
            )
    findings = judge_pairs(facts, found, tried, skews) if len(facts) > 1 else ()
    return ClusterCheck(facts, found, (*unreachable, *findings), tried)


async def _problem(channel: Channel) -> FiresteelError | None:
    """Over a new connection: one made before an MTU changed would get stuck on its own large packets."""
    try:
        if channel.target:
            await ssh.forget(channel.target)
        await channel.prepare()
    except FiresteelError as error:
        return error
    return None


async def _try_direction(
    sender: Channel, listener: Channel, address: str, mtu: int, seconds: float
) -> Reached:
    server = await asyncio.create_subprocess_exec(
        *listener.argv("probe", "listen", address),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert server.stdin and server.stdout
    try:
        async with asyncio.timeout(15):
            line = await server.stdout.readline()
        if not line:
            return Reached(error=f"{listener.name} cannot listen on {address}")
        port = json.loads(line)["port"]
        answer = await sender.ask("probe", "reach", address, str(port), str(mtu), str(seconds), timeout_s=40)
        return from_json(Reached, answer)
    except (TimeoutError, HostNotReady) as error:
        return Reached(error=str(error) or "no answer in time")
    finally:
        server.stdin.close()  # which ends it
        try:
            async with asyncio.timeout(5):
                await server.wait()
        except TimeoutError:
            server.kill()
            await server.wait()


class JoinedHosts(Value):
    """The hosts of one start: what was read of them just now."""

    head: str
    nodes: tuple[ClusterNode, ...]
    check: ClusterCheck
    rank_hosts: tuple[RankHost, ...]
    allows_tcp: bool = False

    @property
    def size(self) -> int:
        return len(self.rank_hosts)

    def on_node(self, word: str, name: str) -> str:
        """A path of this host on a node, alone or in a word such as `/home/me/x:/y` and `--cache=/home/me/x`:
        what is in the user's home here is in the user's home there."""
        mine, its = self.check.facts[self.head].home, self.check.facts[name].home
        if mine in ("", "/"):
            return word
        return re.sub(rf"(?<![\w./-]){re.escape(mine)}/", lambda _: f"{its}/", word)


# --- what only two hosts together show ---

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
