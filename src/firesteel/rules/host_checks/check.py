"""A host check: what is wrong, what it costs, what to type, and the sources. Data in `data/checks/*.yaml`.

How a host is judged is a function of the same name in `gpu`, `memory`, `rails` or `system`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from firesteel import package_data, yaml_schema
from firesteel.errors import UsageError
from firesteel.facts.evidence import Confidence, Sources
from firesteel.file_schema import file_schema, matching


@file_schema
class HostCheck:
    id: Annotated[str, matching("^[a-z]+(-[a-z]+)*$")]
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


@file_schema
class HostChecksSchema:
    checks: tuple[HostCheck, ...]


@cache
def host_checks() -> dict[str, HostCheck]:
    """By id, in the order of the files."""
    found: dict[str, HostCheck] = {}
    for path in package_data.names("checks"):
        for check in package_data.load(path, _read):
            assert check.id not in found, check.id
            found[check.id] = check
    return found


def _read(path: str, text: str) -> tuple[HostCheck, ...]:
    return yaml_schema.load(path, text, HostChecksSchema).checks


def host_check(name: str) -> HostCheck:
    if name not in host_checks():
        raise UsageError(f"there is no check `{name}`", next="firesteel doctor --all, which names them")
    return host_checks()[name]
