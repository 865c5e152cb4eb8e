"""What `render` prints with `--json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.hosts.cluster.rendered import NodeFile
from firesteel.library.documents.document import Document

if TYPE_CHECKING:
    from firesteel.library.render import Rendered


class RenderJson(Document, tag_field="document", tag="firesteel.render/1"):
    """`firesteel render MODEL --json`"""

    name: str
    names: tuple[str, ...]
    """Several in one Kubernetes manifest or compose file."""
    format: str
    text: str
    path: str | None
    """The file that was written; over several hosts, the folder."""
    nodes: tuple[NodeFile, ...] = ()
    """Over several hosts: a file for each of them."""


def render_json(rendered: Rendered, path: Path | None) -> RenderJson:
    return RenderJson.of(rendered, name=rendered.names[0], format=rendered.form, path=path)
