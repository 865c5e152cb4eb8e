"""`doctor --cluster`: this host and every node at once, each by the same probe over ssh, and what differs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from firesteel.edge import ssh
from firesteel.edge.home import Home
from firesteel.edge.ssh import SshTarget
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.facts.host.probe import Probe, probe_script
from firesteel.hosts.cluster.nodes import local_name, require_nodes, target_of
from firesteel.hosts.doctor.examine import Examination, examine, examine_probe
from firesteel.rules.host.check import CheckLevel
from firesteel.rules.host.findings import NodeDifference, differences, worst
from firesteel.values import Value

_TIMEOUT_S = 30


class ClusterExamination(Value):
    hosts: Mapping[str, Examination]
    """This host first."""
    unreachable: Mapping[str, str]
    """Nodes that could not be read, and why."""
    differences: tuple[NodeDifference, ...]

    @property
    def level(self) -> CheckLevel:
        if self.unreachable:
            return "stop"
        return worst([finding for each in self.hosts.values() for finding in each.findings])


async def examine_cluster(
    home: Home, only: Sequence[str] = (), without: frozenset[str] = frozenset()
) -> ClusterExamination:
    """A node needs only `sh` for it; nothing is copied there. `without`: nodes that do not answer."""
    nodes = [node for node in require_nodes(home) if node.name not in without]
    others = asyncio.gather(*(_examine_node(target_of(home, node), only) for node in nodes))
    here, found = await asyncio.gather(asyncio.to_thread(examine, home, only=only), others)
    answers = {node.name: answer for node, answer in zip(nodes, found, strict=True)}
    reached = {name: answer for name, answer in answers.items() if isinstance(answer, Examination)}
    hosts = {local_name(): here, **reached}
    return ClusterExamination(
        hosts,
        {name: answer for name, answer in answers.items() if isinstance(answer, str)},
        differences({name: examination.facts for name, examination in hosts.items()}),
    )


async def _examine_node(target: SshTarget, only: Sequence[str]) -> Examination | str:
    try:
        done = await ssh.run(target, "sh -s", probe_script().encode(), _TIMEOUT_S)
    except FiresteelError as error:
        return f"{error.what}; {error.next}"
    probe = Probe.parse(done.out)
    if not probe.is_complete:
        lines = done.err.strip().splitlines()
        return HostNotReady(lines[-1] if lines else f"sh -s ended with {done.code}").what
    return examine_probe(probe, only)
