"""`firesteel key add|list|revoke --json`"""

from __future__ import annotations

from typing import Literal

from firesteel.gateway.keys import Key, Scope
from firesteel.library.documents.document import Document


class KeyJson(Document, kw_only=True):
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
    priority: int
    created: str
    expires: str | None
    """Null: never."""


class KeyAddJson(Document, kw_only=True):
    """`firesteel key add NAME --json`"""

    document: Literal["firesteel.key-add/1"] = "firesteel.key-add/1"
    token: str
    """Printed only here; firesteel keeps a hash of it."""
    key: KeyJson
    path: str


class KeyListJson(Document, kw_only=True):
    """`firesteel key list --json`"""

    document: Literal["firesteel.key-list/1"] = "firesteel.key-list/1"
    keys: tuple[KeyJson, ...]


class KeyRevokeJson(Document, kw_only=True):
    """`firesteel key revoke NAME --json`"""

    document: Literal["firesteel.key-revoke/1"] = "firesteel.key-revoke/1"
    key: KeyJson


def key_json(key: Key) -> KeyJson:
    limits = key.limits
    return KeyJson.of(
        key,
        requests=str(limits.requests) if limits.requests else None,
        tokens=str(limits.tokens) if limits.tokens else None,
        budget=str(limits.budget) if limits.budget else None,
        expires=key.expires or None,
    )
