"""`doctor --measure` between hosts: rails by `ib_write_bw` and by NCCL, TCP where there is no RDMA."""

from __future__ import annotations

import asyncio
import shlex
import shutil

from firesteel.edge import ssh
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.edge.host.machine import add_measurements
from firesteel.errors import FiresteelError
from firesteel.facts.host.host_facts import HostMeasurement
from firesteel.hosts.cluster.add import all_channels
from firesteel.hosts.cluster.check import ClusterCheck, check_cluster
from firesteel.hosts.cluster.node_facts import Link
from firesteel.hosts.cluster.nodes import all_nodes, find_node, local_name, target_of
from firesteel.hosts.cluster.rail_tests import (
    ALL_GATHER,
    WRITE_BW,
    all_gather,
    rail_devices,
    read_nccl_tests,
    read_write_bw,
    write_bw,
)
from firesteel.hosts.cluster.ranks import rank_hosts
from firesteel.hosts.doctor.measure import MeasureEvent, NotMeasured, figure

_LIMIT_S = 60.0
_NCCL_S = 300.0


def measure_rails(home: Home) -> list[MeasureEvent]:
    """Stores the figures."""
    events = asyncio.run(_measure(home))
    add_measurements(home, [event for event in events if isinstance(event, HostMeasurement)])
    return events


async def _measure(home: Home) -> list[MeasureEvent]:
    nodes, here = all_nodes(home), local_name()
    if not nodes:
        return [NotMeasured("rails", "the other Spark is not known: firesteel cluster add spark2")]
    try:
        found = await check_cluster(all_channels(home, nodes, here), measures=True)
    except FiresteelError as error:
        return [NotMeasured("rails", error.what)]
    own = [link for link in found.links if here in (link.one, link.other)]
    by_link = [await _link(home, here, link, found) for link in own]
    return [*(event for events in by_link for event in events), await _nccl(home, here, found)]


async def _link(home: Home, here: str, link: Link, found: ClusterCheck) -> list[MeasureEvent]:
    other = link.other if link.one == here else link.one
    address = link.interface_of(other).address or ""
    devices = rail_devices(link, dict(found.facts))
    if devices is None:
        reached = found.tried.get((here, other, address))
        speed = reached.gbit_per_s if reached else None
        tcp = [figure(f"tcp_gbps ({other} over {address})", speed, "Gb/s")] if speed else []
        why = "no RDMA device is active at both ends"
        return [*tcp, NotMeasured(f"RDMA to {other} over {address}", why)]
    mine, its = devices if link.one == here else devices[::-1]
    return [await _write_bw(home, other, address, mine, its)]


async def _write_bw(
    home: Home, other: str, address: str, mine: str, its: str
) -> HostMeasurement | NotMeasured:
    what, target = f"{mine} to {other}", target_of(home, find_node(home, other))
    if lacking := await _lacking(WRITE_BW, other, target):
        command = shlex.join(write_bw(mine, address))
        return NotMeasured(what, f"{lacking}: sudo apt install perftest; it would run {command}")
    waits = ssh.run(target, shlex.join(("timeout", "30", *write_bw(its))), timeout_s=_LIMIT_S)
    waiting = asyncio.create_task(waits)
    try:
        for _ in range(10):  # until the other side waits for us
            code, text = await process.run("timeout", str(_LIMIT_S), *write_bw(mine, address))
            if speed := read_write_bw(text):
                return figure(f"rail_gbps ({what})", speed, "Gb/s")
            await asyncio.sleep(0.5)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    last = text.strip().rpartition("\n")[2][:200] or f"exit code {code}"
    return NotMeasured(what, f"{last}; a firewall has to allow both rails: sudo ufw allow in on INTERFACE")


async def _nccl(home: Home, here: str, found: ClusterCheck) -> HostMeasurement | NotMeasured:
    try:
        hosts = rank_hosts(here, found.facts, found.links)
    except FiresteelError as error:
        return NotMeasured("NCCL", error.what)
    if not all(host.hcas for host in hosts):
        return NotMeasured("NCCL", "no RDMA device is active on every host")
    command = all_gather(hosts)
    for host in hosts:
        target = None if host.name == here else target_of(home, find_node(home, host.name))
        if lacking := await _lacking(ALL_GATHER, host.name, target):
            build = "build https://github.com/NVIDIA/nccl-tests with MPI=1"
            return NotMeasured("NCCL", f"{lacking}: {build}; it would run {shlex.join(command)}")
    _, text = await process.run("timeout", str(_NCCL_S), *command)
    speed = read_nccl_tests(text)
    if speed is None:
        return NotMeasured("NCCL", text.strip().rpartition("\n")[2][:200] or "it printed nothing")
    return figure("nccl_gbytes_per_s (all_gather, bus)", speed, "GB/s")


async def _lacking(program: str, host: str, target: ssh.SshTarget | None) -> str | None:
    if shutil.which(program) is None:
        return f"this host has no {program}"
    if target and (await ssh.run(target, f"command -v {program}")).code:
        return f"{host} has no {program}"
    return None
