"""What `serve`, `top` and `client` print with `--json`.

The gateway answers `GET /api/usage` with the document of `serve usage`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from firesteel.facts.evidence import Evidence
from firesteel.gateway.keys import Scope
from firesteel.gateway.state import GpuStatus, MemoryStatus, ModelStatus
from firesteel.library.documents.document import Document

if TYPE_CHECKING:
    from firesteel.gateway.keys import Key
    from firesteel.library.clients import ConfiguredClient


class ServeJson(Document, tag_field="document", tag="firesteel.serve/1"):
    """`firesteel serve --json`, on one line, as soon as the gateway listens"""

    url: str
    models: tuple[str, ...]


class TopJson(Document, tag_field="document", tag="firesteel.top/1"):
    """`firesteel top --json`"""

    url: str
    version: str
    models: tuple[ModelStatus, ...]
    memory: MemoryStatus
    gpu: GpuStatus | None
    waiting: int
    """Requests that wait, for all models."""
    problem: str
    """What is wrong with the service file; empty: nothing."""


# --- keys, usage, clients ---


class KeyJson(Document):
    name: str
    id: str
    """The first digits of the sha256 of its token."""
    scope: Scope
    models: tuple[str, ...] | None
    """Null: all."""
    requests: str | None
    """The rate limit: `60/m`."""
    tokens: str | None
    budget: str | None
    """Tokens of prompts and answers: `5000000/month`."""
    at_once: int | None
    """Requests under way."""
    priority: int
    created: str
    expires: str | None
    """Null: never."""


class KeyAddJson(Document, tag_field="document", tag="firesteel.key-add/1"):
    """`firesteel serve key add NAME --json`"""

    token: str
    """Printed only here; firesteel keeps a hash of it."""
    key: KeyJson
    path: str


class KeyListJson(Document, tag_field="document", tag="firesteel.key-list/1"):
    """`firesteel serve key list --json`"""

    keys: tuple[KeyJson, ...]


class KeyRevokeJson(Document, tag_field="document", tag="firesteel.key-revoke/1"):
    """`firesteel serve key revoke NAME --json`"""

    key: KeyJson


def key_json(key: Key) -> KeyJson:
    limits = key.limits
    return KeyJson.of(
        key,
        requests=str(limits.requests) if limits.requests else None,
        tokens=str(limits.tokens) if limits.tokens else None,
        budget=str(limits.budget) if limits.budget else None,
        at_once=limits.at_once,
        expires=key.expires or None,
    )


class ClientJson(Document, tag_field="document", tag="firesteel.client/1"):
    """`firesteel client NAME [MODEL] --json`"""

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
    format: Literal["json", "toml", "yaml", "yaml-list", "env"]
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
        path=found.path,
        written=written,
        backup=backup,
        taken=found.target.kind,
        notes=found.notes,
    )
