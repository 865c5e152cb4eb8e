"""What is wrong with this host, and with the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.edge.files.home import find_home

if TYPE_CHECKING:  # loaded only by those who use them
    from firesteel.hosts.doctor.examine import Examination
    from firesteel.hosts.doctor.nodes import ClusterExamination


def doctor(
    checks: Iterable[str] = (), *, root: Path | None = None, source: Path | None = None
) -> Examination:
    """What is wrong with this host, with a folder that stands for one, or with one in a bundle."""
    from firesteel.hosts.doctor.examine import examine, examine_file

    return examine_file(source, checks) if source else examine(find_home(), root=root, only=checks)


async def doctor_cluster(checks: Sequence[str] = ()) -> ClusterExamination:
    """The same of this host and every node of the cluster, and what differs between them."""
    from firesteel.hosts.doctor.nodes import examine_cluster  # ssh

    return await examine_cluster(find_home(), checks)
