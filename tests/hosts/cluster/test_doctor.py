"""`doctor --cluster`: every node by the same probe, over a real sshd."""

from __future__ import annotations

from tests.hosts.cluster.namespaces import NamespaceHost


def test_every_node_is_examined(two_hosts: list[NamespaceHost]) -> None:
    head, node = two_hosts
    assert head.firesteel("doctor", "--cluster").code == 1, "there are no nodes yet"
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    found = head.firesteel("doctor", "--cluster", "jumbo-frames", "rails-addressed", "--json")
    assert found.code == 0, found.err
    assert found.json["hosts"].keys() == {"spark1", "spark2"}
    levels = {row["check"]: row["level"] for row in found.json["hosts"]["spark2"]["findings"]}
    assert levels == {"jumbo-frames": "good", "rails-addressed": "good"}
    assert found.json["differences"] == []
    node.mtu(1500)
    shown = head.firesteel("doctor", "--cluster", "jumbo-frames")
    assert "MTU of enp1s0f1np1 is 1500" in shown.out
    assert "MTU of the rails differs: spark1 9000, spark2 1500" in shown.out
    node.power_off()
    gone = head.firesteel("doctor", "--cluster", "jumbo-frames")
    assert gone.code == 5 and "spark2" in gone.out
