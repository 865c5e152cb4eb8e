"""A host check: what is wrong, what it costs, what to type, and the sources. Data in `data/checks/*.yaml`.

How a host is judged is a function of the same name in `gpu`, `memory`, `rails` or `system`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from msgspec import Meta

from firesteel import shipped_data
from firesteel.errors import UsageError
from firesteel.facts.evidence import Confidence, Sources
from firesteel.values import FileValue


class HostCheck(FileValue, kw_only=True):
    id: Annotated[str, Meta(pattern="^[a-z]+(-[a-z]+)*$", max_length=1000)]
    title: str
    level: Literal["stop", "warn", "note"]
    says: str
    """What is wrong. May contain the values of the verdict: `{clock}`."""
    costs: str
    """A figure, with what it refers to; or the failure."""
    do: str
    """What to type."""
    undo: str | None = None
    """How to take it back by hand; None: there is nothing to take back."""
    confidence: Confidence
    sources: Sources


class HostChecksSchema(FileValue, kw_only=True):
    checks: tuple[HostCheck, ...]


@cache
def host_checks() -> dict[str, HostCheck]:
    """By id, in the order of the files."""
    found: dict[str, HostCheck] = {}
    for path in shipped_data.names("checks"):
        for check in shipped_data.load(path, HostChecksSchema).checks:
            assert check.id not in found, check.id
            found[check.id] = check
    return found


def host_check(name: str) -> HostCheck:
    if name not in host_checks():
        raise UsageError(f"there is no check `{name}`", next="firesteel doctor --all, which names them")
    return host_checks()[name]
