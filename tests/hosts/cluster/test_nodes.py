"""Nodes over a real sshd: added, checked, removed; and every way in which ssh refuses."""

from __future__ import annotations

import subprocess

from tests.hosts.cluster.namespaces import NamespaceHost

NODE_FOLDER = ".local/share/firesteel/cluster"


def test_add_list_check_remove(two_hosts: list[NamespaceHost]) -> None:
    head, node = two_hosts
    asked = head.firesteel("cluster", "add", "spark2")
    assert asked.code == 2 and "the host key of spark2 is SHA256:" in asked.err, "no answer is no consent"
    assert head.firesteel("cluster", "list", "--json").json["nodes"] == []
    added = head.firesteel("cluster", "add", "spark2", "--yes")
    assert added.code == 0, added.err
    assert "spark2 is spark2" in added.out and "enp1s0f1np1 10.77.0.2" in added.out
    assert "copied to it" in added.err
    copied = sorted(path.name.partition("-")[0] for path in (node.home / NODE_FOLDER).iterdir())
    assert copied == ["agent", "probe", "reaper"], "nothing but what it says"
    assert [row["name"] for row in head.firesteel("cluster", "list", "--json").json["nodes"]] == ["spark2"]
    found = head.firesteel("cluster", "check", "--json")
    assert found.json["topology"] == "direct"
    assert {row["check"] for row in found.json["findings"]} >= {"joined", "bandwidth", "clock"}
    examined = found.json["doctor"]["hosts"]
    assert examined.keys() == {"spark1", "spark2"} and not found.json["doctor"]["unreachable"]
    stops = [row for host in examined.values() for row in host["findings"] if row["level"] == "stop"]
    assert found.code == (5 if stops else 0), "the hosts of this test are whatever this machine is"
    # Both hosts are this machine, which may be busy: how long a packet takes says nothing about them.
    others = [row for row in found.json["findings"] if row["check"] != "latency"]
    assert not [row for row in others if row["level"] in ("warn", "stop")]
    assert head.firesteel("cluster", "remove", "spark2").code == 0
    assert not (node.home / NODE_FOLDER).exists()
    assert head.firesteel("cluster", "check").code == 1


def test_check_names_what_is_wrong_with_a_link(two_hosts: list[NamespaceHost]) -> None:
    head, node = two_hosts
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    node.mtu(1500)
    found = head.firesteel("cluster", "check", "--no-measure")
    assert found.code == 5
    assert "spark1 to spark2 over 10.77.0.2: a packet of 9000 bytes does not arrive" in found.out
    assert "MTU 9000 on spark1 enp1s0f1np1, 1500 on spark2 enp1s0f1np1" in found.out
    node.mtu(9000)
    node.firewall("tcp dport 22 accept; ct state established accept; drop")
    found = head.firesteel("cluster", "check", "--no-measure")
    assert found.code == 5 and "spark1 to spark2 over 10.77.0.2: port not reached" in found.out
    assert "ufw allow in on enp1s0f1np1" in found.out
    node.firewall("")
    node.power_off()
    found = head.firesteel("cluster", "check", "--no-measure")
    assert found.code == 5 and "spark2 does not answer" in found.err


def test_a_key_of_its_own_where_the_users_keys_do_not_do(two_hosts: list[NamespaceHost]) -> None:
    head, node = two_hosts
    accepted = node.home / ".ssh/authorized_keys"
    accepted.write_text("")
    refused = head.firesteel("cluster", "add", "spark2", "--yes")
    assert refused.code == 5, refused.err
    key = head.folder / "firesteel/cluster/spark2/id_ed25519"
    assert f"ssh-copy-id -i {key} spark2" in refused.err
    accepted.write_text((key.with_suffix(".pub")).read_text())
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    assert head.firesteel("cluster", "remove", "spark2").code == 0
    assert accepted.read_text() == "", "its key is gone from the node, too"


def test_another_host_key_is_refused(two_hosts: list[NamespaceHost]) -> None:
    head, node = two_hosts
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    node.power_off()
    for suffix in ("", ".pub"):
        (node.folder / f"hostkey{suffix}").unlink()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(node.folder / "hostkey")], check=True
    )
    node.power_on()
    found = head.firesteel("cluster", "check", "--no-measure")
    assert found.code == 5 and "another host key than before" in found.err
    again = head.firesteel("cluster", "add", "spark2", "--yes")
    assert again.code == 5 and "another host key than before" in again.err


def test_names_and_unknown_hosts(two_hosts: list[NamespaceHost]) -> None:
    head, _ = two_hosts
    assert head.firesteel("cluster", "add", "../x", "--yes").code == 2
    assert head.firesteel("cluster", "add", "-oProxyCommand=x", "--yes").code == 2
    unknown = head.firesteel("cluster", "add", "spark9", "--yes")
    assert unknown.code == 5 and "no host is called spark9" in unknown.err
    assert head.firesteel("cluster", "remove", "spark9").code == 2
    assert not (head.folder / "firesteel/cluster/spark9").exists()
