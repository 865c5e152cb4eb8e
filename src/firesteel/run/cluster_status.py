"""`cluster.json` in a service's folder: what the runner sees of every host. Written by the runner alone."""

from __future__ import annotations

from pathlib import Path

from firesteel.edge import home
from firesteel.values import Value

STATUS_FILE = "cluster.json"


class NodeStatus(Value):
    host: str
    rank: int
    phase: str
    """`waiting` (until every node answers), `fallback` (this host, which serves another model meanwhile),
    `starting`, `running`, `silent` (no answer, not yet lost), `stopping`, `ended`."""
    pid: int | None = None
    resident_bytes: int = 0
    available_bytes: int = 0
    log: str = ""


class ClusterStatus(Value):
    phase: str
    why: str | None
    transport: str
    nodes: tuple[NodeStatus, ...]
    notices: tuple[str, ...] = ()


def write_status(folder: Path, status: ClusterStatus) -> None:
    home.write_state(folder / STATUS_FILE, status)


def read_status(folder: Path) -> ClusterStatus | None:
    """None for a service of one host."""
    return home.read_state(folder / STATUS_FILE, ClusterStatus)
