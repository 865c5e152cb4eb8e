"""`firesteel cluster add|list|check|remove --json`"""

from __future__ import annotations

from typing import Literal

from firesteel.hosts.cluster.check import ClusterCheck, PairFinding
from firesteel.hosts.cluster.nodes import ClusterNode
from firesteel.hosts.cluster.topology import NodeFacts, TopologyKind, kind, proposed_addresses
from firesteel.hosts.doctor.nodes import ClusterExamination
from firesteel.library.documents.document import Document
from firesteel.library.documents.hosts import DoctorClusterJson, doctor_cluster_json


class ClusterAddJson(Document, kw_only=True):
    """`firesteel cluster add NAME --json`"""

    document: Literal["firesteel.cluster-add/1"] = "firesteel.cluster-add/1"
    node: ClusterNode
    facts: NodeFacts


class ClusterListJson(Document, kw_only=True):
    """`firesteel cluster list --json`"""

    document: Literal["firesteel.cluster-list/1"] = "firesteel.cluster-list/1"
    nodes: tuple[ClusterNode, ...]


class LinkJson(Document, kw_only=True):
    hosts: tuple[str, str]
    interfaces: tuple[str, str]
    addresses: tuple[str | None, str | None]
    mtus: tuple[int | None, int | None]
    fast: bool


class ClusterCheckJson(Document, kw_only=True):
    """`firesteel cluster check --json`"""

    document: Literal["firesteel.cluster-check/1"] = "firesteel.cluster-check/1"
    topology: TopologyKind
    facts: dict[str, NodeFacts]
    links: tuple[LinkJson, ...]
    findings: tuple[PairFinding, ...]
    proposed: dict[str, str]
    """By host: a netplan file for rails that have no address."""
    doctor: DoctorClusterJson
    """Every host by itself, and what should be equal on all of them and is not."""


class ClusterStageJson(Document, kw_only=True):
    """`firesteel cluster stage MODEL --json`"""

    document: Literal["firesteel.cluster-stage/1"] = "firesteel.cluster-stage/1"
    name: str
    done: tuple[str, ...]


class ClusterRemoveJson(Document, kw_only=True):
    """`firesteel cluster remove NAME --json`"""

    document: Literal["firesteel.cluster-remove/1"] = "firesteel.cluster-remove/1"
    name: str
    left: str | None
    """What could not be removed from the node, and why."""


def check_json(found: ClusterCheck, examined: ClusterExamination) -> ClusterCheckJson:
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
