"""`cluster check`: read every host at once, try every link both ways, judge."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

from firesteel.edge import ssh
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.hosts.cluster.channel import Channel
from firesteel.hosts.cluster.node_facts import Link, NodeFacts, links
from firesteel.hosts.cluster.pairs import PairFinding, Reached, Tried, judge_pairs
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
    """Of every host, and by how much its clock is ahead of ours. Raises where one cannot be reached."""
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
