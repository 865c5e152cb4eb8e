"""Facts of a host -> findings: every check, the worst first; and what differs between the nodes of a cluster.

    findings = judge(HostFacts.of(Probe.parse(output)))

An odd node is slower or hangs the others: https://github.com/unslothai/unsloth (`spark doctor --parity-only`)
and https://github.com/spark-arena/sparkrun, seen 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from firesteel.facts.evidence import Confidence, Evidence
from firesteel.facts.host.host_facts import HostFacts
from firesteel.rules.host import gpu, memory, rails, system
from firesteel.rules.host.check import BAD, CheckLevel, CheckVerdict, Judge, host_check, host_checks, unknown
from firesteel.rules.host.fixes import plan_fix
from firesteel.rules.host.gpu import OTA_PACKAGE
from firesteel.values import Value

JUDGES: dict[str, Judge] = {**gpu.JUDGES, **memory.JUDGES, **rails.JUDGES, **system.JUDGES}
_ORDER: dict[CheckLevel, int] = {"stop": 0, "warn": 1, "note": 2, "unknown": 3, "good": 4, "skipped": 5}
WATCHED_CHECKS = (
    "clock-under-load", "heat", "power-limits", "memory-pressure", "page-cache", "kernel-faults", "rails-up",
    "jumbo-frames",
)  # fmt: skip
"""What can change while a model runs; enough for them: the sections `facts.host.probe.WATCHED`."""

_ASKS = {
    "gpu": ("nvidia-smi", ("clock-under-load", "clock-locked", "heat", "driver-match", "driver-branch")),
    "gpu-processes": ("nvidia-smi", ("memory-lost", "gpu-processes")),
    "uname": ("uname", ("kernel-known", "load-mode")),
    "packages": ("dpkg-query", ("driver-upgrades", "system-updates")),
    "updates": ("fwupdmgr", ("firmware-updates",)),
    "processes": ("ps", ("orphans", "desktop")),
    "kernel-log": ("dmesg", ("kernel-faults",)),
    "last-boot": ("journalctl", ("last-boot",)),
    "units": ("systemctl", ("memory-killers", "suspend")),
    "held": ("apt-mark", ("driver-upgrades", "system-updates")),
    "addresses": ("ip addr", ("rails-addressed", "rails-subnets", "rail-routes", "address-owner")),
    "connections": ("nmcli", ("address-owner",)),
    "routes": ("ip route", ("default-route", "rail-routes")),
    "listeners": ("ss", ("ports",)),
    "linger": ("loginctl", ("remove-ipc",)),
    "docker": ("docker info", ("docker", "docker-gpu")),
    "ngc": ("grep", ("ngc-login",)),
    "time": ("timedatectl", ("time-sync",)),
    "disks": ("df", ("store-disk", "store-free", "read-ahead", "disk-scheduler")),
    "smart": ("nvme", ("nvme-health",)),
}
"""section of the probe: the program that fills it, and the checks that cannot be made without its answer"""


class HostFinding(Value):
    check: str
    title: str
    level: CheckLevel
    says: str
    """What is wrong, or why it is not known; empty when all is well."""
    evidence: str
    """The line that was read."""
    costs: str | None
    do: str | None
    """What to type."""
    undo: str | None
    fixable: bool
    """`firesteel doctor --fix CHECK` can mend it."""
    confidence: Confidence
    sources: tuple[Evidence, ...]

    @property
    def is_bad(self) -> bool:
        return self.level in BAD


def judge(facts: HostFacts, only: Iterable[str] = ()) -> tuple[HostFinding, ...]:
    names = list(only) or list(host_checks())
    findings = [judge_one(facts, name) for name in names]
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.level]))


def judge_one(facts: HostFacts, name: str) -> HostFinding:
    check, verdict = host_check(name), _not_in_time(facts, name) or JUDGES[name](facts)
    level: CheckLevel = check.level if verdict.level == "bad" else verdict.level
    is_bad = level in BAD
    do = verdict.values.get("do") or _fill(check.do, verdict.values)
    return HostFinding(
        check=name,
        title=check.title,
        level=level,
        says=_fill(check.says, verdict.values) if is_bad else verdict.needs,
        evidence=verdict.evidence,
        costs=_fill(check.costs, verdict.values) if is_bad else None,
        do=do if is_bad else None,
        undo=(_fill(check.undo, verdict.values) or None) if is_bad and check.undo else None,
        fixable=is_bad and not plan_fix(name, facts).refused,
        confidence=check.confidence,
        sources=check.sources,
    )


def _not_in_time(facts: HostFacts, name: str) -> CheckVerdict | None:
    """No answer says nothing about what was asked, neither good nor bad."""
    for section, (program, checks) in _ASKS.items():
        read = facts.probe.sections.get(section)
        if name in checks and read is not None and read.timed_out:
            return unknown(f"`{program}` did not answer in time: the host is busy, or it is stuck; try again")
    return None


def worst(findings: Sequence[HostFinding]) -> CheckLevel:
    return min((finding.level for finding in findings), key=lambda level: _ORDER[level], default="good")


def _fill(text: str, values: object) -> str:
    assert isinstance(values, dict)
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


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
