"""A host check as data, and its verdict.

The data in `data/checks/*.yaml` says what is wrong, what it costs, what to type, and the sources. How a host
is judged is a function of the same name in `gpu`, `memory`, `rails` or `system`; its verdict has a level, the
line that was read, and the words for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Literal

from msgspec import Meta

from firesteel import shipped_data
from firesteel.errors import UsageError
from firesteel.facts.evidence import Confidence, Sources
from firesteel.facts.host.host_facts import HostFacts
from firesteel.values import FileValue, Value


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
    """How to revert it by hand; None: there is nothing to revert."""
    confidence: Confidence
    sources: Sources


class HostChecksSchema(FileValue, kw_only=True):
    checks: tuple[HostCheck, ...]


@cache
def host_checks() -> dict[str, HostCheck]:
    """All checks by id, in the order of the files."""
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


CheckLevel = Literal["good", "note", "warn", "stop", "unknown", "skipped"]
"""stop: a launch fails, hangs or runs at a fraction of its speed. warn: it may. note: worth knowing.
unknown: it could not be read. skipped: the host has nothing that the check is about."""
BAD: tuple[CheckLevel, ...] = ("stop", "warn", "note")
_MAX_EVIDENCE = 240


class CheckVerdict(Value):
    level: CheckLevel | Literal["bad"]
    """bad: the level that the check's data gives it."""
    evidence: str = ""
    """The line that was read."""
    needs: str = ""
    """If the level is unknown, what the check needs; if it is skipped, why."""
    values: Mapping[str, str] = {}
    """Values that the texts of the check contain: `{clock}`."""


Judge = Callable[[HostFacts], CheckVerdict]


def good(evidence: str) -> CheckVerdict:
    return CheckVerdict("good", _short(evidence))


def bad(evidence: str, level: CheckLevel | Literal["bad"] = "bad", **values: object) -> CheckVerdict:
    return CheckVerdict(level, _short(evidence), values={name: str(value) for name, value in values.items()})


def unknown(needs: str, evidence: str = "") -> CheckVerdict:
    return CheckVerdict("unknown", _short(evidence), needs)


def skipped(why: str) -> CheckVerdict:
    return CheckVerdict("skipped", needs=why)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_EVIDENCE else f"{line[: _MAX_EVIDENCE - 3]}..."
