"""Tests of rails between two hosts: the commands of perftest and nccl-tests, and what they print. Pure.

    spark2$ ib_write_bw -d rocep1s0f1 ...                   the side that waits
    spark1$ ib_write_bw -d rocep1s0f1 ... 192.168.100.11    the side that writes

perftest prints a row a size, with the average in the fourth column (linux-rdma/perftest#132); with `-D` the
peak is 0 (linux-rdma/perftest#234). nccl-tests prints a row for each size with the bus bandwidth out of
place and in place (NVIDIA/dgx-spark-playbooks#25). All seen 2026-11-16.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from firesteel.hosts.cluster.node_facts import Link, NodeFacts
from firesteel.hosts.cluster.ranks import RankHost

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
