"""What `doctor` and `cluster` print with `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from firesteel.facts.evidence import Confidence, Evidence
from firesteel.facts.host.host_facts import HostMeasurement
from firesteel.hosts.cluster.check import PairFinding
from firesteel.hosts.cluster.nodes import ClusterNode
from firesteel.hosts.cluster.topology import NodeFacts, TopologyKind, kind, proposed_addresses
from firesteel.hosts.doctor.fix import Fixed
from firesteel.hosts.doctor.measure import NotMeasured
from firesteel.library.documents.document import Document
from firesteel.rules.host.check import CheckLevel
from firesteel.rules.host.findings import NodeDifference

if TYPE_CHECKING:
    from firesteel.hosts.cluster.check import ClusterCheck
    from firesteel.hosts.doctor.examine import Examination
    from firesteel.hosts.doctor.fix import Undone
    from firesteel.hosts.doctor.nodes import ClusterExamination
    from firesteel.rules.host.fixes import FixPlan


class ScenarioJson(Document):
    name: str
    about: str


class ScenariosJson(Document, tag_field="document", tag="firesteel.scenarios/1"):
    """`firesteel --sim list --json`"""

    scenarios: tuple[ScenarioJson, ...]


class VersionJson(Document, tag_field="document", tag="firesteel.version/1"):
    """`firesteel --version --json`"""

    version: str


class HostFindingJson(Document):
    check: str
    title: str
    level: CheckLevel
    says: str
    evidence: str
    costs: str | None
    do: str | None
    undo: str | None
    fixable: bool
    """`firesteel doctor --fix CHECK` can mend it."""
    confidence: Confidence
    sources: tuple[Evidence, ...]


class DoctorJson(Document, tag_field="document", tag="firesteel.doctor/1"):
    """`firesteel doctor --json`; the worst finding first"""

    product: str
    is_spark: bool
    kernel: str
    driver: str | None
    level: CheckLevel
    """The worst of all."""
    findings: tuple[HostFindingJson, ...]
    measured: tuple[HostMeasurement, ...]


def doctor_json(examination: Examination) -> DoctorJson:
    facts = examination.facts
    return DoctorJson.of(facts, examination, measured=tuple(facts.measured.values()))


class DoctorBundleJson(Document, tag_field="document", tag="firesteel.doctor-bundle/1"):
    """`firesteel doctor --bundle FILE --json`"""

    file: str
    sections: tuple[str, ...]


class FixJson(Document):
    check: str
    diff: str
    """What it would change, or has changed; empty when it is done."""
    notes: tuple[str, ...]
    refused: str
    """Why it is not done; empty: it can be."""
    done: bool
    verified: bool
    says: str


class DoctorFixJson(Document, tag_field="document", tag="firesteel.doctor-fix/1"):
    """`firesteel doctor --fix --json`"""

    fixes: tuple[FixJson, ...]


class UndoJson(Document):
    check: str
    at: str
    left: tuple[str, ...]
    """What was not reverted, and why."""


class DoctorUndoJson(Document, tag_field="document", tag="firesteel.doctor-undo/1"):
    """`firesteel doctor --undo --json`"""

    undone: tuple[UndoJson, ...]


def doctor_fix_json(
    plans: Sequence[FixPlan], diffs: Mapping[str, str], done: Sequence[Fixed]
) -> DoctorFixJson:
    results = {fixed.check: fixed for fixed in done}
    fixes = (
        FixJson.of(
            plan,
            results.get(plan.check, Fixed(plan.check, verified=False, says="")),
            diff=diffs[plan.check],
            done=plan.check in results,
        )
        for plan in plans
    )
    return DoctorFixJson.of(fixes=tuple(fixes))


def doctor_undo_json(undone: Sequence[Undone]) -> DoctorUndoJson:
    return DoctorUndoJson.of(undone=tuple(UndoJson.of(each.entry, left=each.left) for each in undone))


class DoctorMeasureJson(Document, tag_field="document", tag="firesteel.doctor-measure/1"):
    """`firesteel doctor --measure --json`"""

    figures: tuple[HostMeasurement, ...]
    not_measured: tuple[NotMeasured, ...]


class DoctorClusterJson(Document, tag_field="document", tag="firesteel.doctor-cluster/1"):
    """`firesteel doctor --cluster --json`"""

    hosts: dict[str, DoctorJson]
    unreachable: dict[str, str]
    differences: tuple[NodeDifference, ...]
    """What should be equal on every node and is not."""


def doctor_cluster_json(found: ClusterExamination) -> DoctorClusterJson:
    hosts = {name: doctor_json(each) for name, each in found.hosts.items()}
    return DoctorClusterJson.of(found, hosts=hosts)


# --- cluster ---


class ClusterAddJson(Document, tag_field="document", tag="firesteel.cluster-add/1"):
    """`firesteel cluster add NAME --json`"""

    node: ClusterNode
    facts: NodeFacts


class ClusterListJson(Document, tag_field="document", tag="firesteel.cluster-list/1"):
    """`firesteel cluster list --json`"""

    nodes: tuple[ClusterNode, ...]


class LinkJson(Document):
    hosts: tuple[str, str]
    interfaces: tuple[str, str]
    addresses: tuple[str | None, str | None]
    mtus: tuple[int | None, int | None]
    fast: bool


class ClusterCheckJson(Document, tag_field="document", tag="firesteel.cluster-check/1"):
    """`firesteel cluster check --json`"""

    topology: TopologyKind
    facts: dict[str, NodeFacts]
    links: tuple[LinkJson, ...]
    findings: tuple[PairFinding, ...]
    proposed: dict[str, str]
    """By host: a netplan file for rails that have no address."""
    doctor: DoctorClusterJson
    """Every host by itself, and what should be equal on all of them and is not."""


class ClusterStageJson(Document, tag_field="document", tag="firesteel.cluster-stage/1"):
    """`firesteel cluster stage MODEL --json`"""

    name: str
    done: tuple[str, ...]


class ClusterRemoveJson(Document, tag_field="document", tag="firesteel.cluster-remove/1"):
    """`firesteel cluster remove NAME --json`"""

    name: str
    left: str | None
    """What could not be removed from the node, and why."""


def cluster_check_json(found: ClusterCheck, examined: ClusterExamination) -> ClusterCheckJson:
    return ClusterCheckJson.of(
        topology=kind(found.facts, found.links),
        facts=found.facts,
        links=tuple(
            LinkJson.of(
                hosts=(link.one, link.other),
                interfaces=(link.one_interface.name, link.other_interface.name),
                addresses=(link.one_interface.address, link.other_interface.address),
                mtus=(link.one_interface.mtu, link.other_interface.mtu),
                fast=link.is_fast,
            )
            for link in found.links
        ),
        findings=found.findings,
        proposed=proposed_addresses(found.facts),
        doctor=doctor_cluster_json(examined),
    )
