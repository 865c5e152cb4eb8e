"""`firesteel client --json`"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from firesteel.facts.evidence import Evidence
from firesteel.library.clients import ConfiguredClient
from firesteel.library.documents.document import Document


class ClientJson(Document, kw_only=True):
    """`firesteel client NAME [MODEL] --json`"""

    document: Literal["firesteel.client/1"] = "firesteel.client/1"
    client: str
    title: str
    speaks: Literal["chat", "messages", "responses"]
    url: str
    model: str
    context: int | None
    output: int | None
    """The longest answer that the client will ask for."""
    key_variable: str | None
    """The environment variable that holds the key; null: no key is needed."""
    format: Literal["json", "toml", "yaml", "env"]
    text: str
    path: str | None
    """The file it belongs in; null: the client is configured by environment variables."""
    written: bool
    backup: str | None
    """A copy of the file as it was before."""
    taken: Literal["gateway", "service", "plan"]
    """What it points at: `firesteel serve`, a service's own port, or where `up` would serve it."""
    notes: tuple[str, ...]
    sources: tuple[Evidence, ...]


def client_json(found: ConfiguredClient, written: bool, backup: Path | None) -> ClientJson:
    return ClientJson.of(
        found.client,
        found.target.endpoint,
        client=found.name,
        key_variable=found.target.endpoint.key,
        text=found.text,
        path=str(found.path) if found.path else None,
        written=written,
        backup=str(backup) if backup else None,
        taken=found.target.kind,
        notes=found.notes,
    )
