"""`doctor --measure` between hosts: rails by `ib_write_bw` and by NCCL, TCP where there is no RDMA.

    spark2$ ib_write_bw -d rocep1s0f1 ...                   the side that waits
    spark1$ ib_write_bw -d rocep1s0f1 ... 192.168.100.11    the side that writes

perftest prints a row a size, with the average in the fourth column (linux-rdma/perftest#132); with `-D` the
peak is 0 (linux-rdma/perftest#234). nccl-tests prints a row for each size with the bus bandwidth out of place
and in place (NVIDIA/dgx-spark-playbooks#25). All seen 2026-11-16.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from collections.abc import Sequence

from firesteel.edge import ssh
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.edge.host.machine import add_measurements
from firesteel.errors import FiresteelError
from firesteel.facts.host.host_facts import HostMeasurement
from firesteel.hosts.cluster.add import all_channels
from firesteel.hosts.cluster.check import ClusterCheck, check_cluster
from firesteel.hosts.cluster.nodes import all_nodes, find_node, local_name, target_of
from firesteel.hosts.cluster.ranks import RankHost, rank_hosts
from firesteel.hosts.cluster.topology import Link, NodeFacts
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


# --- the commands of perftest and nccl-tests, and what they print ---

WRITE_BW, ALL_GATHER = "ib_write_bw", "all_gather_perf"
SECONDS = 2
_HEADER = re.compile(r"#bytes .*BW average\[(Gb|MB)/sec\]")
_MPI_PREFIX = re.compile(r"^\[\d+,\d+\]<\w+>:\s*")


def write_bw(device: str, peer: str | None = None) -> tuple[str, ...]:
    """Four queue pairs and addresses by rdma_cm: NCCL, too, finds the GID by itself."""
    words = (WRITE_BW, "-d", device, "--report_gbits", "-q", "4", "-R", "--force-link", "IB")
    return (*words, "-D", str(SECONDS), *((peer,) if peer else ()))


def read_write_bw(text: str) -> float | None:
    """Gb/s on average, of the last size; None: it was not measured."""
    header = _HEADER.search(text)
    if header is None:
        return None
    rows = [line.split() for line in text[header.end() :].splitlines()]
    averages = [float(row[3]) for row in rows if len(row) >= 5 and row[0].isdecimal()]
    if not averages:
        return None
    return averages[-1] if header[1] == "Gb" else averages[-1] * 2**20 * 8 / 1e9


def rail_devices(link: Link, facts: dict[str, NodeFacts]) -> tuple[str, str] | None:
    """The RDMA devices at both ends of a link."""
    found = [
        next((hca.name for hca in facts[name].hcas if hca.interface == link.interface_of(name).name), None)
        for name in (link.one, link.other)
    ]
    return (found[0], found[1]) if found[0] and found[1] else None


def all_gather(hosts: Sequence[RankHost]) -> tuple[str, ...]:
    """256 MB to 1 GB. Never 16 GB, as in NVIDIA's playbook: that froze a Spark (dgx-spark-playbooks#102)."""
    head = hosts[0]
    env = {"NCCL_IB_HCA": ",".join(head.hcas), "NCCL_SOCKET_IFNAME": head.interface, "NCCL_DEBUG": "WARN"}
    variables = [word for name, value in env.items() for word in ("-x", f"{name}={value}")]
    names = ",".join(f"{host.address}:1" for host in hosts)
    return (
        "mpirun", "-np", str(len(hosts)), "-H", names, *variables,
        "--mca", "btl_tcp_if_include", head.interface,
        ALL_GATHER, "-b", "256M", "-e", "1G", "-f", "2", "-g", "1",
    )  # fmt: skip


def read_nccl_tests(text: str) -> float | None:
    """The best bus bandwidth in GB/s, of the largest size: by then the start no longer counts."""
    rows = [_MPI_PREFIX.sub("", line).split() for line in text.splitlines()]
    figures = [row for row in rows if len(row) >= 12 and row[0].isdecimal()]
    if not figures:
        return None
    last = figures[-1]
    return max(float(last[-6]), float(last[-2]))
