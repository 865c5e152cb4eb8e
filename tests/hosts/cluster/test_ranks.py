"""Ranks of a launch over two Sparks: flags by engine, environment by host, and the transport by its log."""

from __future__ import annotations

import pytest

from firesteel.errors import FiresteelError, Stopped
from firesteel.hosts.cluster.check import ClusterCheck, JoinedHosts, Reached, judge_pairs
from firesteel.hosts.cluster.ranks import (
    execute_timeout_s,
    rank_hosts,
    rank_launch,
    require_transport,
    transport_of,
)
from firesteel.hosts.cluster.topology import (
    NodeFacts,
    NodeInterface,
    RdmaDevice,
    kind,
    links,
    proposed_addresses,
    svg_drawing,
    text_drawing,
)
from firesteel.launch import EngineName, Launch
from firesteel.planner.memory.measured import launch_key
from firesteel.values import replace

RAILS = ("enp1s0f1np1", "enP2p1s0f1np1")
HCAS = ("rocep1s0f1", "roceP2p1s0f1")


def rail(name: str, address: str | None, **more: object) -> NodeInterface:
    base = NodeInterface(name, 9000, "up", True, 200_000, "abc/p1", address=address, netmask="255.255.255.0")
    return replace(base, **more)


def spark(last: int, *, has_rdma: bool = True, **more: object) -> NodeFacts:
    wired = NodeInterface("enP7s7", 1500, "up", True, address=f"192.168.1.{last}", netmask="255.255.255.0")
    rails = (rail(RAILS[0], f"192.168.100.{last}"), rail(RAILS[1], f"192.168.101.{last}"))
    devices = [RdmaDevice(hca, "4: ACTIVE", interface=name) for hca, name in zip(HCAS, RAILS, strict=True)]
    facts = NodeFacts(
        f"spark{last}", 0.0, "6.17.0-1014-nvidia", "3.12.3", "aarch64", "/home/me", "580.142",
        interfaces=(wired, *rails), rdma=tuple(devices) if has_rdma else (),
    )  # fmt: skip
    return replace(facts, **more)


PAIR = {"spark1": spark(1), "spark2": spark(2)}
MEMBERS = rank_hosts("spark1", PAIR, links(PAIR))


def launch(engine: EngineName) -> Launch:
    return Launch(
        "m", "org/m", engine, "0.32.0", {"master-addr": "$HEAD", "tensor-parallel-size": "2"}, sparks=2
    )


def test_hosts_are_joined_by_their_rails() -> None:
    assert [(member.address, member.interface, member.hcas) for member in MEMBERS] == [
        ("192.168.100.1", RAILS[0], HCAS), ("192.168.100.2", RAILS[0], HCAS),
    ]  # fmt: skip
    assert transport_of(MEMBERS) == "rdma"
    assert {name for member in MEMBERS for name in member.rails} == set(RAILS)


def test_vllm_ranks_differ_in_rank_host_and_headless_only() -> None:
    head, worker = (rank_launch(launch("vllm"), MEMBERS, rank) for rank in (0, 1))
    assert head.flags == {
        "tensor-parallel-size": "2", "nnodes": "2", "node-rank": "0", "master-addr": "192.168.100.1",
        "master-port": "29501", "distributed-executor-backend": "mp",
    }  # fmt: skip
    assert worker.flags == {**head.flags, "node-rank": "1", "headless": True}
    assert {name for name in head.env if head.env[name] != worker.env[name]} == {"VLLM_HOST_IP"}


def test_the_environment_of_a_rank() -> None:
    env = rank_launch(launch("vllm"), MEMBERS, 1).env
    assert env["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1", "both, or else half of the link"
    assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == RAILS[0]
    assert env["VLLM_HOST_IP"] == "192.168.100.2" and env["NCCL_NET"] == "IB"
    assert "NCCL_IB_GID_INDEX" not in env, "a stored index is wrong after a link has bounced"
    assert "NCCL_NET" not in rank_launch(launch("vllm"), MEMBERS, 1, allows_tcp=True).env
    own = replace(launch("vllm"), env={"NCCL_IB_HCA": "mlx5_0"})
    assert rank_launch(own, MEMBERS, 1).env["NCCL_IB_HCA"] == "mlx5_0", "what the recipe says stays"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_a_rank_is_the_launch_that_was_planned(engine: EngineName) -> None:
    """Or the gateway would take it for another model, and the next plan would not find its measurement."""
    assert launch_key(rank_launch(launch(engine), MEMBERS, 0)) == launch_key(launch(engine))
    other = replace(launch(engine), flags={"tensor-parallel-size": "4"})
    assert launch_key(other) != launch_key(launch(engine))


def test_sglang_and_llamacpp_ranks() -> None:
    worker = rank_launch(launch("sglang"), MEMBERS, 1)
    assert worker.flags["dist-init-addr"] == "192.168.100.1:29501" and worker.flags["node-rank"] == "1"
    assert "headless" not in worker.flags and "VLLM_HOST_IP" not in worker.env
    head = rank_launch(launch("llamacpp"), MEMBERS, 0)
    assert head.flags["rpc"] == "192.168.100.2:50052" and not head.env


def test_ray_where_a_recipe_wants_it() -> None:
    ray = replace(launch("vllm"), flags={"distributed-executor-backend": "ray"})
    assert "headless" not in rank_launch(ray, MEMBERS, 1).flags


def test_hosts_apart_are_refused() -> None:
    far = {"spark1": spark(1), "spark2": spark(2, interfaces=(rail(RAILS[0], "10.0.0.2"),))}
    with pytest.raises(FiresteelError, match="no address in a common subnet"):
        rank_hosts("spark1", far, links(far))


BOTH = (
    "spark1:77:77 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; "
    "OOB enp1s0f1np1:192.168.100.1<0>"
)
ONE = "NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]"
SOCKET = "NCCL INFO NET/Socket : Using [0]enp1s0f1np1:192.168.100.1<0>"


def test_the_transport_is_proved_from_the_log() -> None:
    assert require_transport(f"x\n{BOTH}\ny", HCAS, False) == "RDMA by rocep1s0f1, roceP2p1s0f1"
    assert require_transport(SOCKET, HCAS, True) == "TCP"
    assert require_transport("", (), True) == "not known"


@pytest.mark.parametrize(
    ("log", "text"), [(ONE, "without roceP2p1s0f1"), (SOCKET, "TCP sockets"), ("", "no log shows")]
)
def test_anything_but_both_rails_is_refused(log: str, text: str) -> None:
    with pytest.raises(Stopped, match=text) as refused:
        require_transport(log, HCAS, False)
    assert refused.value.exit_code == 3


def test_a_device_whose_name_begins_another_is_missing() -> None:
    log = "NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_0:1/RoCE [RO]"
    with pytest.raises(Stopped, match="without mlx5_1:"):
        require_transport(log, ("mlx5_1", "mlx5_0"), False)
    assert require_transport(log, ("mlx5_10", "mlx5_0"), False) == "RDMA by mlx5_10, mlx5_0"


def test_the_step_timeout_follows_the_longest_prefill() -> None:
    assert [execute_timeout_s(each) for each in (0, 60, 1000, None)] == [60, 180, 300, 300]


# --- pairs and topology ---

GOOD = Reached(0.1, "ok", "ok", 90.0)


def levels(facts: dict[str, NodeFacts], skews: dict[str, float] | None = None) -> dict[str, str]:
    found = links(facts)
    tried = {
        (one, other, link.interface_of(other).address or ""): GOOD
        for link in found
        for one, other in ((link.one, link.other), (link.other, link.one))
    }
    findings = judge_pairs(facts, found, tried, skews or dict.fromkeys(facts, 0.0))
    return {finding.check: finding.level for finding in reversed(findings)}


def test_two_good_sparks() -> None:
    assert set(levels(PAIR).values()) == {"good"}
    assert kind(PAIR, links(PAIR)) == "direct"
    assert "192.168.101.1 ==[200G mtu 9000/9000]== 192.168.101.2" in text_drawing(PAIR, links(PAIR))
    assert svg_drawing(PAIR, links(PAIR)).count("<rect") == 3


def test_what_is_wrong_with_a_pair() -> None:
    same = spark(2, interfaces=(rail(RAILS[0], "192.168.100.2"), rail(RAILS[1], "192.168.100.3")))
    assert levels({"spark1": spark(1), "spark2": same})["rails-subnets"] == "stop"
    bare = spark(2, interfaces=(rail(RAILS[0], "192.168.100.2"), rail(RAILS[1], None)))
    assert levels({"spark1": spark(1), "spark2": bare})["rails-addressed"] == "warn"
    assert levels({"spark1": spark(1), "spark2": spark(1)})["address-unique"] == "stop"
    assert levels({"spark1": spark(1), "spark2": spark(2, machine="x86_64")})["processor"] == "stop"
    assert levels(PAIR, {"spark1": 0.0, "spark2": -5.0})["clock"] == "warn"
    wired = {name: replace(node, interfaces=node.interfaces[:1]) for name, node in PAIR.items()}
    assert levels(wired)["joined"] == "warn" and kind(wired, links(wired)) == "ordinary network"


def test_addresses_are_proposed_for_rails_without() -> None:
    bare = spark(2, interfaces=(rail(RAILS[0], None), rail(RAILS[1], None)))
    files = proposed_addresses({"spark1": spark(1), "spark2": bare})
    assert list(files) == ["spark2"]
    assert (
        "enp1s0f1np1: {dhcp4: no, dhcp6: no, link-local: [], mtu: 9000, addresses: [192.168.100.11/24]}"
        in (files["spark2"])
    )
    assert "addresses: [192.168.101.11/24]" in files["spark2"]


def test_three_on_a_switch_and_in_a_ring() -> None:
    three = {f"spark{number}": spark(number) for number in (1, 2, 3)}
    assert kind(three, links(three)) == "switch"
    cables = {
        1: ("192.168.10.1", "192.168.30.1"),
        2: ("192.168.10.2", "192.168.20.2"),
        3: ("192.168.20.3", "192.168.30.3"),
    }
    ring = {
        f"spark{number}": spark(
            number,
            interfaces=(rail("enp1s0f0np0", one, port="abc/p0"), rail("enp1s0f1np1", other, port="abc/p1")),
        )
        for number, (one, other) in cables.items()
    }
    assert kind(ring, links(ring)) == "ring"


def test_paths_in_the_home_of_the_head_become_paths_in_the_home_of_the_node() -> None:
    facts = {"spark1": spark(1), "spark2": spark(2, home="/home/you")}
    joined = JoinedHosts("spark1", (), ClusterCheck(facts, (), ()), ())
    words = (
        "/home/me/a:/b",
        "--cache=/home/me/c",
        "--path /home/me/d",
        "/home/me",
        "/mnt/home/me/e",
        "x/home/me/f",
    )
    assert [joined.on_node(word, "spark2") for word in words] == [
        "/home/you/a:/b", "--cache=/home/you/c", "--path /home/you/d", "/home/me", "/mnt/home/me/e",
        "x/home/me/f",
    ]  # fmt: skip
