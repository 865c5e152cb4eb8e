"""The gateway: one URL for several models, its keys and its usage; and settings of clients."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Literal

from firesteel.edge.files.home import find_home

if TYPE_CHECKING:  # loaded only by those who use them
    import asyncio
    from datetime import datetime

    from firesteel.gateway.address import Address
    from firesteel.gateway.admin.usage import UsageReport
    from firesteel.gateway.client_target import ClientTarget
    from firesteel.gateway.key_file import Key
    from firesteel.gateway.rate_limits import KeyLimits
    from firesteel.gateway.serve import ServeEvent, ServeOptions


def gateway() -> Address | None:
    """Where the gateway of this home answers; None: none runs."""
    from firesteel.gateway.address import read_address

    return read_address(find_home())


def client_target(
    model: str | None = None, *, context: int | None = None, direct: bool = False
) -> ClientTarget:
    """The endpoint that a client should use, with its limits and abilities: the gateway's unless `direct`."""
    from firesteel.gateway.client_target import find_target
    from firesteel.library.run import services
    from firesteel.workspace import find_workspace

    return find_target(find_workspace(), services(), None if direct else gateway(), model, context)


def client_settings(client: str, target: ClientTarget) -> str:
    """The configuration that points a client (`opencode`, `codex`, ...) at a target, as the client's file."""
    from firesteel.render import clients

    settings = clients.settings(client, target.endpoint)
    return clients.render_settings(settings, clients.load_client(client).format)


def serve(options: ServeOptions, ends: asyncio.Event) -> AsyncIterator[ServeEvent]:
    """Serves the models of a service file at one URL, until `ends` is set."""
    from firesteel.gateway.serve import serve_file  # the HTTP server

    return serve_file(options, find_home(), ends)


def keys() -> tuple[Key, ...]:
    """The gateway's keys, without their tokens."""
    from firesteel.gateway.key_file import keys_path, read_keys

    return tuple(read_keys(keys_path(find_home())).values())


def add_key(
    name: str,
    *,
    scope: Literal["inference", "admin", "metrics"] = "inference",
    models: tuple[str, ...] | None = None,
    limits: KeyLimits | None = None,
    priority: int = 0,
    expires: datetime | None = None,
) -> tuple[Key, str]:
    """The key and its token, which is stored nowhere."""
    from firesteel.gateway import key_file
    from firesteel.gateway.rate_limits import NO_LIMITS

    path, limits = key_file.keys_path(find_home()), limits or NO_LIMITS
    return key_file.add_key(
        path, name, scope=scope, models=models, limits=limits, priority=priority, expires=expires
    )


def revoke_key(name: str) -> Key:
    """A running gateway refuses it within seconds."""
    from firesteel.gateway import key_file

    return key_file.revoke_key(key_file.keys_path(find_home()), name)


def usage(
    since: str | None = None,
    until: str | None = None,
    *,
    key: str | None = None,
    model: str | None = None,
    by: Iterable[str] = ("day", "key", "model"),
) -> UsageReport:
    """Requests and tokens by day, key and model, and what is left of the budgets; the last 30 days."""
    from firesteel.gateway.admin import usage as reports

    options = {"since": since, "until": until, "key": key, "model": model, "by": ",".join(by)}
    return reports.read_report(find_home(), reports.parse_query(options), time.time())
