"""What `logs --why` shows of a LogDiagnosis: the causes, what followed from them, and what to type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from firesteel.cli.output.invocation import typed
from firesteel.errors import escape_unprintable

if TYPE_CHECKING:
    from firesteel.engines.diagnosis import Cause, Diagnosis
    from firesteel.library.check import LogDiagnosis

_SHOWN_CHARACTERS = 300
_STYLES = {"root": "bold red", "trouble": "bold red", "follows": "dim", "note": "yellow"}
_LABELS = {"root": "cause", "trouble": "cause", "follows": "then", "note": "note"}


def diagnosis_view(found: LogDiagnosis) -> Group:
    name, diagnosis = found.name, found.diagnosis
    views = [Text(_head(name, diagnosis))]
    for cause in (*diagnosis.causes, *diagnosis.notes):
        views += _cause_view(name, cause)
    if found.is_unknown:
        views += _unknown_view(name, diagnosis)
    if found.is_not_a_log:
        views.append(_command(found.where))
    if diagnosis.follows and diagnosis.causes:
        lines = ", ".join(_position(name, cause) for cause in diagnosis.follows)
        views.append(Text(f"then   {lines}", "dim"))
    if diagnosis.folded:
        counts = ", ".join(f"{folded.id} {folded.count}" for folded in diagnosis.folded)
        views.append(Text(f"harmless lines left out: {counts}", "dim"))
    return Group(*views)


def _head(name: str, diagnosis: Diagnosis) -> str:
    engine = (
        f"{diagnosis.engine} {diagnosis.version or '(version not known)'}"
        if diagnosis.engine
        else "no engine found"
    )
    last = f"; last message: {diagnosis.reached}" if diagnosis.reached else ""
    state = {
        "healthy": "started normally",
        "unfinished": f"no failure, but not up yet{last}",
        "failed": f"failed{last}",
    }[diagnosis.state]
    earlier = ", after an earlier failure" if diagnosis.state == "healthy" and diagnosis.causes else ""
    return f"{escape_unprintable(name)}: {engine}, {diagnosis.lines:,} lines; {state}{earlier}"


def _cause_view(name: str, cause: Cause) -> list[Text]:
    label = Text(f"{_LABELS[cause.kind]:<7}", _STYLES[cause.kind])
    line = escape_unprintable(cause.text[:_SHOWN_CHARACTERS])
    again = f" ({cause.count} times)" if cause.count > 1 else ""
    source = cause.sources[0]
    return [
        label + Text(cause.id, "bold") + Text(f": {escape_unprintable(cause.says)}"),
        Text(f"       {escape_unprintable(name)}:{cause.line}  {line}{again}"),
        *([_command(escape_unprintable(cause.next))] if cause.next else []),
        Text(f"       seen   {cause.confidence}, {source.seen}, {source.url}", "dim"),
    ]


def _command(text: str) -> Text:
    return Text(f"       type   {typed(text)}")


def _unknown_view(name: str, diagnosis: Diagnosis) -> list[Text]:
    views = [Text("firesteel does not know this failure", "bold red")]
    if diagnosis.suspect:
        line, text = diagnosis.suspect
        shown = escape_unprintable(text[:_SHOWN_CHARACTERS])
        views.append(Text(f"       {escape_unprintable(name)}:{line}  {shown}"))
    views += [
        Text(f"       {_position(name, cause)}  {escape_unprintable(cause.text[:_SHOWN_CHARACTERS])}")
        for cause in diagnosis.follows
    ]
    return views


def _position(name: str, cause: Cause) -> str:
    return f"{cause.id} at {escape_unprintable(name)}:{cause.line}"
