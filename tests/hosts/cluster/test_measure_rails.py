"""Bandwidth tests between hosts: what real programs printed, the commands, and what is judged from them."""

from __future__ import annotations

import json
import socket
import sys
import threading

import pytest
from tests.hosts.cluster.namespaces import NamespaceHost

from firesteel.hosts.cluster import probe
from firesteel.hosts.cluster.check import Reached, judge_pairs
from firesteel.hosts.cluster.rendered import usual_hosts
from firesteel.hosts.cluster.topology import NodeFacts, NodeInterface, RdmaDevice, links
from firesteel.hosts.doctor.measure_rails import (
    all_gather,
    rail_devices,
    read_nccl_tests,
    read_write_bw,
    write_bw,
)
from firesteel.values import replace

GBITS = """\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 2          5000           0.042350            0.042185            2.636533
 8          5000             0.17               0.17   \t\t   2.641399
---------------------------------------------------------------------------------------
"""
"""Rows of linux-rdma/perftest#132."""
MBYTES = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 2          1000             4.86               4.67               2.450225
 16         1000             38.98              38.95              2.5525
"""
"""Rows of openucx/ucx#8851."""
NCCL = """\
#       size         count   type  redop  root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
#        (B)    (elements)                        (us) (GB/s) (GB/s)           (us) (GB/s) (GB/s)
 17179869184    2147483648  float   none    -1  453650  37.87  18.94      0  410049  41.90  20.95      0
# Out of bounds values : 0 OK
"""
"""Two Sparks: NVIDIA/dgx-spark-playbooks#25."""


def test_what_the_programs_print_is_read() -> None:
    assert read_write_bw(GBITS) == 0.17
    assert read_write_bw(MBYTES) == pytest.approx(38.95 * 2**20 * 8 / 1e9)
    assert read_write_bw("Unable to init the socket connection") is None
    assert read_write_bw(GBITS.partition(" 2  ")[0]) is None, "a header without a row"
    assert read_nccl_tests(NCCL) == 20.95
    assert read_nccl_tests(NCCL.replace(" 171", "[1,0]<stdout>: 171")) == 20.95
    assert read_nccl_tests("mpirun: not found") is None


def test_the_commands() -> None:
    assert " ".join(write_bw("rocep1s0f1")).startswith("ib_write_bw -d rocep1s0f1 --report_gbits -q 4 -R")
    assert write_bw("rocep1s0f1", "192.168.100.11")[-1] == "192.168.100.11"
    command = " ".join(all_gather(usual_hosts(2)))
    assert "-H 192.168.100.10:1,192.168.100.11:1" in command and "-b 256M -e 1G" in command
    assert "NCCL_IB_HCA=rocep1s0f1,roceP2p1s0f1" in command and "GID" not in command


def node(number: int, port: int = 1) -> NodeFacts:
    rails = tuple(
        NodeInterface(
            f"{name}f{port}np{port}", 9000, "up", True, 200000,
            address=f"192.168.{100 + at}.{number}", netmask="255.255.255.0",
        )
        for at, name in enumerate(("enp1s0", "enP2p1s0"))
    )  # fmt: skip
    rdma = tuple(RdmaDevice(f"roce{rail.name[2:-3]}", "4: ACTIVE", interface=rail.name) for rail in rails)
    return NodeFacts(f"spark{number}", 0, "6.17", "3.12", "aarch64", interfaces=rails, rdma=rdma)


def test_each_rail_is_tested_by_its_own_devices() -> None:
    facts = {"spark1": node(10), "spark2": node(11)}
    devices = {rail_devices(link, facts) for link in links(facts)}
    assert devices == {("rocep1s0f1", "rocep1s0f1"), ("roceP2p1s0f1", "roceP2p1s0f1")}
    without = {**facts, "spark2": replace(facts["spark2"], rdma=())}
    assert all(rail_devices(link, without) is None for link in links(without))


def levels(one: NodeFacts, other: NodeFacts, rtt_ms: float, lost: int = 0) -> dict[str, str]:
    facts = {"spark1": one, "spark2": other}
    found = links(facts)
    reached = Reached(rtt_ms, "ok", "ok", 96.0, lost)
    tried = {(link.one, link.other, link.other_interface.address or ""): reached for link in found}
    return {finding.check: finding.level for finding in judge_pairs(facts, found, tried, {"spark2": 0.0})}


def test_a_slow_answer_and_different_ports_are_told() -> None:
    told = levels(node(10), node(11, port=0), 3.0)
    assert told["latency"] == "warn" and told["same-port"] == "note"
    told = levels(node(10), node(11), 0.1)
    assert "latency" not in told and "same-port" not in told and "loss" not in told
    assert levels(node(10), node(11), 0.1, lost=4)["loss"] == "warn"


@pytest.mark.parametrize(("every", "patience_s"), [(1000, 30.0), (10, 0.5)])
def test_lost_packets_are_counted(every: int, patience_s: float) -> None:
    def echo() -> None:
        for number in range(probe.PACKETS):
            data, peer = server.recvfrom(64)
            if number % every < every - 1:
                server.sendto(data, peer)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        threading.Thread(target=echo, daemon=True).start()
        lost = probe.lost("127.0.0.1", server.getsockname()[1], patience_s)
    assert lost == 0 if every > probe.PACKETS else lost >= 10


SCRIPT = """
import json
import socket
from firesteel.edge.home import find_home
from firesteel.hosts.doctor.measure_rails import measure_rails
print(json.dumps([repr(event) for event in measure_rails(find_home())]))
"""


@pytest.mark.slow
def test_links_to_a_node_are_measured_and_what_is_missing_is_said(two_hosts: list[NamespaceHost]) -> None:
    head, _ = two_hosts
    assert "cluster add spark2" in head.run(sys.executable, "-c", SCRIPT).out
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    done = head.run(sys.executable, "-c", SCRIPT)
    events = json.loads(done.out)
    assert "tcp_gbps (spark2 over 10.77.0.2)" in events[0], done.err
    assert "no RDMA device is active at both ends" in events[1] and "NCCL" in events[2]
