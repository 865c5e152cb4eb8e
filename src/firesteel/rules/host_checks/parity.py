"""What should be equal on every node of a cluster, and is not. Pure.

An odd node is slower or hangs the others: https://github.com/unslothai/unsloth (`spark doctor --parity-only`)
and https://github.com/spark-arena/sparkrun, seen 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from firesteel.facts.host.host_facts import HostFacts
from firesteel.rules.host_checks.gpu import OTA_PACKAGE
from firesteel.values import Value

_WHAT: dict[str, tuple[Callable[[HostFacts], str | None], str]] = {
    "machine": (lambda facts: facts.product, "use machines of one kind, or expect the slower one's speed"),
    "driver": (lambda facts: facts.driver, "sudo apt full-upgrade on the older node, then sudo reboot"),
    "kernel": (
        lambda facts: facts.kernel or None,
        "sudo apt full-upgrade on the older node, sudo reboot, then firesteel doctor kexec-handover",
    ),
    "BIOS": (lambda facts: facts.bios, "sudo fwupdmgr update on the older node"),
    "release of DGX OS": (
        lambda facts: facts.packages.get(OTA_PACKAGE),
        "sudo apt full-upgrade on the older node, then sudo reboot",
    ),
    "ConnectX-7 firmware": (
        lambda facts: next((rail.rdma.firmware for rail in facts.rails if rail.rdma), None),
        "sudo fwupdmgr update on the older node, then check the MTU again",
    ),
    "container toolkit": (
        lambda facts: facts.packages.get("nvidia-container-toolkit"),
        "sudo apt install nvidia-container-toolkit on the older node",
    ),
    "docker": (
        lambda facts: facts.probe.text("docker").split("|")[0].strip() or None,
        "sudo apt full-upgrade on the older node",
    ),
    "user": (lambda facts: facts.user or None, "the same user name on every node"),
    "MTU of the rails": (
        lambda facts: ", ".join(sorted({str(rail.mtu) for rail in facts.cabled_rails})) or None,
        "firesteel doctor --fix jumbo-frames on the node with the smaller one",
    ),
}


class NodeDifference(Value):
    what: str
    values: Mapping[str, str]
    """By node; `not known` where it could not be read."""
    do: str


def differences(nodes: Mapping[str, HostFacts]) -> tuple[NodeDifference, ...]:
    """Node -> its facts; unknown values are no difference."""
    found: list[NodeDifference] = []
    for what, (read, do) in _WHAT.items():
        values = {name: read(facts) for name, facts in nodes.items()}
        if len({value for value in values.values() if value}) > 1:
            found.append(
                NodeDifference(what, {name: value or "not known" for name, value in values.items()}, do)
            )
    return tuple(found)
