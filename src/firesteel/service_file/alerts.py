"""`alerts:` of the service file: whom to tell, and when."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from firesteel.service_file.scalars import VARIABLE, Bytes, Words, seconds
from firesteel.values import Expand, FileValue


class AlertEntry(FileValue, kw_only=True):
    """Whom to tell when a model turns unhealthy, a load fails, the guard acts or a disk fills."""

    webhook: Annotated[str, Meta(min_length=1, max_length=2000)] | None = None
    """Gets JSON by POST: an http address or, since that is a secret at most services, a variable with it."""
    command: Words = ()
    """Gets the same JSON on its standard input; started without a shell."""
    repeat: Annotated[int, Meta(ge=60), Expand(seconds)] = 6 * 3600
    """What lasts is told again so often."""
    disk: Bytes | None = None
    """A disk with less space is an alert; 20 GiB by default."""


def alert_faults(alerts: AlertEntry) -> Iterator[tuple[tuple[str, ...], str]]:
    webhook = alerts.webhook
    if webhook is not None and not VARIABLE.match(webhook):
        parts = urlsplit(webhook) if not re.search(r"[\x00-\x20\x7f]", webhook) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            # Not repeated: what stands there may be a secret.
            what = "`webhook` is neither an http address nor the name of a variable, like ALERT_URL"
            yield ("alerts", "webhook"), what
    if alerts.command and not alerts.command[0]:
        yield ("alerts", "command"), "`command` begins with no program"
