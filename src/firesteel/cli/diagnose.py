"""`firesteel diagnose LOG`"""

from __future__ import annotations

import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, get_args

import click
from rich.console import Group
from rich.text import Text

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.documents import CauseJson, DiagnosisJson, FoldedJson, SuspectJson
from firesteel.cli.output.fill import source_json
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import out
from firesteel.engines import Cause, Diagnosis, diagnose
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import EngineName
from firesteel.rules import visible

MAX_BYTES = 2**30
"""What one log may hold; the first cause of a longer one is not in its last gigabyte anyway."""
_PIECE_BYTES = 2**16
_SHOWN = 300
_STYLES = {"root": "bold red", "trouble": "bold red", "follows": "dim", "note": "yellow"}
_NAMES = {"root": "cause", "trouble": "cause", "follows": "then", "note": "note"}


@click.command("diagnose")
@click.argument("log")
@click.option(
    "--engine", type=click.Choice(get_args(EngineName)), help="Whose log it is, if it does not show."
)
@common.json_option
def command(log: str, engine: EngineName | None, as_json: bool) -> int:
    """Why an engine did not start, from its LOG: a file, `-` for stdin, or the name of a service.

    Exits 1 when the log shows a failure of a kind that is not known, or is no engine's log at all.
    """
    name, pieces = _open(log)
    with pieces as found:
        diagnosis = diagnose(found, engine)
    if as_json:
        common.print_json(_json(name, diagnosis))
    else:
        out.print(_view(name, diagnosis), soft_wrap=True)
    return 1 if _is_unknown(diagnosis) or _is_foreign(diagnosis) else 0


def _is_unknown(found: Diagnosis) -> bool:
    return found.state == "failed" and not found.causes


def _is_foreign(found: Diagnosis) -> bool:
    """Empty, or nothing that an engine would say."""
    return found.state == "unfinished" and not found.notes and (not found.lines or not found.engine)


def _open(log: str) -> tuple[str, AbstractContextManager[Iterator[str]]]:
    if log == "-":
        return "stdin", _pieces(None, log)
    path = Path(log)
    try:
        if path.is_file() or path.is_fifo():
            return log.encode(errors="replace").decode(), _pieces(path, log)
    except (OSError, ValueError):
        pass  # no path at all, so perhaps a name
    kept = {each.parent.name: each for each in library.home().services.glob("*/engine.log")}
    if log in kept:
        return log, _pieces(kept[log], log)
    known = f", nor the log of a service ({', '.join(sorted(kept))})" if kept else ""
    raise UsageError(
        f"`{visible(log)}` is no file{known}",
        next="firesteel diagnose FILE, or: docker logs NAME 2>&1 | firesteel diagnose -",
    )


@contextmanager
def _pieces(path: Path | None, name: str) -> Iterator[Iterator[str]]:
    try:
        if path is None:
            yield _read(sys.stdin.buffer, name)
            return
        with path.open("rb") as file:
            yield _read(file, name)
    except OSError as error:
        raise FiresteelError(f"{name} cannot be read: {error.strerror}", next=f"ls -l {name}") from error


def _read(file: BinaryIO, name: str) -> Iterator[str]:
    """The text as it comes, a little at a time."""
    decoder, count = getincrementaldecoder("utf-8")(errors="replace"), 0
    while data := file.read(_PIECE_BYTES):
        if not count and b"\0" in data:
            raise UsageError(
                f"{name} is no text", next="firesteel diagnose with the log that the engine wrote"
            )
        count += len(data)
        if count > MAX_BYTES:
            raise UsageError(
                f"{name} is longer than {MAX_BYTES:,} bytes",
                next=f"head -c 100M {name} | firesteel diagnose -",
            )
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


def _view(name: str, found: Diagnosis) -> Group:
    views = [Text(_head(name, found))]
    for cause in (*found.causes, *found.notes):
        views += _cause_view(name, cause)
    if _is_unknown(found):
        views += _unknown_view(name, found)
    if _is_foreign(found):
        views.append(_type(_where_the_log_is(name)))
    if found.follows and found.causes:
        views.append(Text(f"then   {', '.join(_place(name, each) for each in found.follows)}", "dim"))
    if found.folded:
        said = ", ".join(f"{each.id} {each.count}" for each in found.folded)
        views.append(Text(f"folded harmless lines: {said}", "dim"))
    return Group(*views)


def _head(name: str, found: Diagnosis) -> str:
    engine = f"{found.engine} {found.version or 'of a version not known'}" if found.engine else "no engine"
    last = f"; the last it said: {found.reached}" if found.reached else ""
    state = {
        "healthy": "a healthy start",
        "unfinished": f"no failure, and not up yet{last}",
        "failed": f"failed{last}",
    }[found.state]
    earlier = ", after an earlier failure" if found.state == "healthy" and found.causes else ""
    return f"{visible(name)}: {engine}, {found.lines:,} lines; {state}{earlier}"


def _cause_view(name: str, cause: Cause) -> list[Text]:
    head = Text(f"{_NAMES[cause.kind]:<7}", _STYLES[cause.kind]) + Text(cause.id, "bold")
    again = f" ({cause.count} times)" if cause.count > 1 else ""
    views = [head + Text(f": {visible(cause.says)}")]
    views.append(Text(f"       {visible(name)}:{cause.line}  {visible(cause.text[:_SHOWN])}{again}"))
    if cause.next:
        views.append(_type(visible(cause.next)))
    source = cause.sources[0]
    views.append(Text(f"       seen   {cause.confidence}, {source.seen}, {source.url}", "dim"))
    return views


def _type(words: str) -> Text:
    return Text(f"       type   {typed(words)}")


def _where_the_log_is(name: str) -> str:
    if (library.home().services / name / "engine.log").is_file():
        return f"firesteel ps, for why {visible(name)} has said nothing"
    return "docker logs NAME 2>&1 | firesteel diagnose -"


def _unknown_view(name: str, found: Diagnosis) -> list[Text]:
    views = [Text("why it failed is not among what firesteel knows", "bold red")]
    if found.suspect:
        line, said = found.suspect
        views.append(Text(f"       {visible(name)}:{line}  {visible(said[:_SHOWN])}"))
    views += [Text(f"       {_place(name, each)}  {visible(each.text[:_SHOWN])}") for each in found.follows]
    return views


def _place(name: str, cause: Cause) -> str:
    return f"{cause.id} at {visible(name)}:{cause.line}"


def _json(name: str, found: Diagnosis) -> DiagnosisJson:
    suspect = SuspectJson(line=found.suspect[0], text=found.suspect[1]) if found.suspect else None
    return DiagnosisJson(
        log=visible(name),
        engine=found.engine,
        version=found.version,
        state=found.state,
        stage=found.reached.stage if found.reached else None,
        lines=found.lines,
        causes=[_cause_json(each) for each in found.causes],
        follows=[_cause_json(each) for each in found.follows],
        notes=[_cause_json(each) for each in found.notes],
        folded=[
            FoldedJson(id=each.id, says=each.says, line=each.line, count=each.count) for each in found.folded
        ],
        suspect=suspect,
    )


def _cause_json(cause: Cause) -> CauseJson:
    return CauseJson(
        id=cause.id,
        kind=cause.kind,
        says=cause.says,
        next=cause.next,
        host=cause.is_host,
        line=cause.line,
        text=cause.text,
        count=cause.count,
        confidence=cause.confidence,
        sources=[source_json(source) for source in cause.sources],
    )
