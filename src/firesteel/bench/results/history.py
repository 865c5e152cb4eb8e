"""The history: every run with all its samples, in one SQLite file under FIRESTEEL_HOME.

A sample is a transaction of its own, so a process that is killed loses nothing that it had handed over, and a
run goes on where it was (`resume`). The file is in WAL mode and is not flushed to the disk with each sample,
which would take the time that is being measured: only a machine that loses its power can lose the last ones.

Two processes may write to it at once, each its own run; a lock beside it keeps one run from two writers. A
file that is damaged is set aside under another name and a new one begun; one that a newer firesteel wrote is
left as it is.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from firesteel.bench.results import serialize
from firesteel.bench.results.interrupted import with_figures
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, RequestSample
from firesteel.edge.files.home import Home, Locked, lock, writable_folder
from firesteel.edge.files.own_runs import SCHEMA, history_path
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.printable import printable

_MARK = 0x46495245
"""`FIRE`, so that somebody else's database is not taken for ours."""
_PATIENCE_S = 10
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_LAST = re.compile(r"last(?:~(\d{1,6}))?")
_CHECKED_BYTES = 64 * 2**20
"""A file up to this size is looked through before it is used."""
_WAL_PAGES = 8000
"""32 MiB before what was written goes into the file itself, which waits for the disk."""
_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, began TEXT NOT NULL, origin TEXT NOT NULL, source TEXT NOT NULL,
    model TEXT NOT NULL, engine TEXT, version TEXT, launch_key TEXT, is_whole INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_by_launch ON runs (launch_key);
CREATE TABLE IF NOT EXISTS points (
    run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, point INTEGER NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (run, point)
);
CREATE TABLE IF NOT EXISTS samples (
    at INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
    point INTEGER NOT NULL, repetition INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS samples_of_run ON samples (run);
CREATE TABLE IF NOT EXISTS figures (
    run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, point INTEGER NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (run, point)
);
"""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list."""

    id: str
    began: str
    model: str
    engine: str | None
    version: str | None
    origin: str
    is_whole: int
    points: int
    samples: int


def new_run_id(now: datetime | None = None) -> str:
    """Sorted by time, and told apart from others of the same second."""
    return f"{now or datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class History:
    """`with open_history(home) as history: ...`"""

    def __init__(self, home: Home, file: sqlite3.Connection, notes: tuple[str, ...]) -> None:
        self.notes = notes
        """What was found wrong when it was opened; empty mostly."""
        self._home, self._file = home, file
        self._held = ExitStack()
        self._writing: set[str] = set()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for name in self._writing:
            self._lock_path(name).unlink(missing_ok=True)
        self._held.close()
        with suppress(sqlite3.Error):
            self._file.close()

    def begin(self, run: BenchRun, origin: str = "measured here", source: str = "") -> None:
        """From here on it is in the history, with no samples yet."""
        self._claim(run.id)
        with self._change() as file:
            if file.execute("SELECT 1 FROM runs WHERE id = ?", (run.id,)).fetchone():
                raise UsageError(f"there is a run {run.id} already", next=f"firesteel history show {run.id}")
            subject = run.subject
            file.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (run.id, run.began, origin, source, subject.model, subject.engine, subject.version,
                 subject.launch_key, run.is_whole, _about(run)),
            )  # fmt: skip
            points = [(run.id, at, serialize.text_of(point)) for at, point in enumerate(run.points)]
            file.executemany("INSERT INTO points VALUES (?, ?, ?)", points)
            self._keep_figures(file, run)

    def is_begun(self, run_id: str) -> bool:
        """By this process: begun, or gone on with."""
        return run_id in self._writing

    def add(self, run_id: str, *samples: RequestSample) -> None:
        """They are kept when this returns."""
        self._need_claim(run_id)
        rows = [(run_id, each.point, each.repetition, serialize.text_of(each)) for each in samples]
        with self._change() as file:
            file.executemany("INSERT INTO samples (run, point, repetition, text) VALUES (?, ?, ?, ?)", rows)

    def finish(self, run: BenchRun) -> None:
        """What the run came to, whole or not; it may be called again as figures come."""
        self._need_claim(run.id)
        with self._change() as file:
            file.execute(
                "UPDATE runs SET text = ?, is_whole = ?, engine = ?, version = ?, launch_key = ?"
                " WHERE id = ?",
                (_about(run), run.is_whole, run.subject.engine, run.subject.version, run.subject.launch_key,
                 run.id),
            )  # fmt: skip
            self._keep_figures(file, run)

    @staticmethod
    def _keep_figures(file: sqlite3.Connection, run: BenchRun) -> None:
        file.execute("DELETE FROM figures WHERE run = ?", (run.id,))
        rows = [(run.id, at, serialize.text_of(each)) for at, each in enumerate(run.figures)]
        file.executemany("INSERT INTO figures VALUES (?, ?, ?)", rows)

    def resume(self, word: str) -> StoredRun:
        """A run that was not whole, to go on with: its points, its samples so far, its settings."""
        found = self.run(word)
        if found.run.is_whole or found.origin != "measured here":
            why = "is whole" if found.run.is_whole else f"is {found.origin}, not measured here"
            raise UsageError(
                f"run {found.run.id} {why}; there is nothing to go on with", next="firesteel bench"
            )
        self._claim(found.run.id)
        with self._change() as file:  # they will be older than its samples
            file.execute("DELETE FROM figures WHERE run = ?", (found.run.id,))
        return self.run(found.run.id)  # what the other process did before it let go is in it

    def runs(self, limit: int = 50) -> tuple[RunSummary, ...]:
        """The newest first."""
        with self._reading():
            rows = self._file.execute(
                "SELECT id, began, model, engine, version, origin, is_whole,"
                " (SELECT count(*) FROM points WHERE run = runs.id),"
                " (SELECT count(*) FROM samples WHERE run = runs.id)"
                " FROM runs ORDER BY began DESC, rowid DESC LIMIT ?",
                (limit,),
            ).fetchall()
        return tuple(RunSummary(*(_shown(each) for each in row)) for row in rows)

    def run(self, word: str) -> StoredRun:
        """By id, the beginning of one, `last`, or `last~1`: the one before."""
        name = self.find(word)
        with self._reading():
            about, origin, source = self._file.execute(
                "SELECT text, origin, source FROM runs WHERE id = ?", (name,)
            ).fetchone()
            points, samples, figures = (
                [
                    text
                    for (text,) in self._file.execute(
                        f"SELECT text FROM {table} WHERE run = ? {order}", (name,)
                    )
                ]
                for table, order in (
                    ("points", "ORDER BY point"),
                    ("samples", "ORDER BY at"),
                    ("figures", "ORDER BY point"),
                )
            )
        where = f"run {name} in {history_path(self._home)}"
        said = {
            **serialize.loaded(about, where),
            "points": [serialize.loaded(text, where) for text in points],
            "figures": [serialize.loaded(text, where) for text in figures],
        }
        run, kept = serialize.run_from(said, where), serialize.samples_document(samples, where)
        return StoredRun(with_figures(run, kept), kept, origin, printable(source))

    def find(self, word: str) -> str:
        """The whole id."""
        if last := _LAST.fullmatch(word):
            return self._from_last(int(last[1] or 0))
        if not _ID.fullmatch(word):
            raise UsageError("that is no id of a run", next="firesteel history, for all there are")
        with self._reading():
            found = self._file.execute(
                "SELECT id FROM runs WHERE id = ? OR substr(id, 1, ?) = ? ORDER BY id = ? DESC LIMIT 2",
                (word, len(word), word, word),
            ).fetchall()
        if not found:
            raise UsageError(f"there is no run {word}", next="firesteel history, for all there are")
        if len(found) > 1 and found[0][0] != word:
            both = " and ".join(name for (name,) in found)
            raise UsageError(
                f"{word} is the beginning of more than one run: {both}", next="more of its letters"
            )
        return str(found[0][0])

    def _from_last(self, back: int) -> str:
        with self._reading():
            row = self._file.execute(
                "SELECT id FROM runs WHERE origin = 'measured here'"
                " ORDER BY began DESC, rowid DESC LIMIT 1 OFFSET ?",
                (back,),
            ).fetchone()
        if not row:
            what = (
                "no run was measured here yet"
                if not back
                else f"fewer than {back + 1} runs were measured here"
            )
            raise UsageError(what, next="firesteel bench")
        return str(row[0])

    def delete(self, word: str) -> str:
        name = self.find(word)
        self._claim(name)
        with self._change() as file:
            file.execute("DELETE FROM runs WHERE id = ?", (name,))
        return name

    def _claim(self, name: str) -> None:
        if not _ID.fullmatch(name):
            raise UsageError("that is no id of a run", next="letters, digits, `.`, `_` and `-`, at most 80")
        if name in self._writing:
            return
        try:
            self._held.enter_context(lock(self._lock_path(name)))
        except Locked:
            raise UsageError(
                f"run {name} is being measured by another process", next="firesteel history"
            ) from None
        self._writing.add(name)

    def _lock_path(self, name: str) -> Path:
        return self._home.root / "locks" / f"bench-{name}.lock"

    def _need_claim(self, name: str) -> None:
        if name not in self._writing:
            raise FiresteelError(f"run {name} was not begun here", next=f"firesteel history show {name}")

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing."""
        with _in_words(history_path(self._home)):
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield self._file
                self._file.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._file.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with _in_words(history_path(self._home)):
            yield


def open_history(home: Home) -> History:
    path = history_path(home)
    notes: tuple[str, ...] = ()
    with writable_folder(home.root), _in_words(path):
        try:
            file = _opened(path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            notes = (_set_aside(home, path, error),)
            file = _opened(path)
    return History(home, file, notes)


def _opened(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        path.chmod(0o600)  # a launch may carry secrets in its environment
        version = _need_ours(path, file)
        if path.stat().st_size <= _CHECKED_BYTES:
            told = file.execute("PRAGMA quick_check(1)").fetchone()[0]
            if told != "ok":
                raise sqlite3.DatabaseError(f"malformed: {told}")
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = NORMAL")
        file.execute("PRAGMA foreign_keys = ON")
        file.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        if version < SCHEMA:
            file.executescript(
                f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA};"
                f" PRAGMA application_id = {_MARK}; COMMIT;"
            )
    except BaseException:
        file.close()
        raise
    return file


def _need_ours(path: Path, file: sqlite3.Connection) -> int:
    """Its version; 0 for a file that is new. Tables are looked for first: whoever makes them marks it too."""
    has_tables = file.execute("SELECT 1 FROM sqlite_master").fetchone()
    version, mark = (
        int(file.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("user_version", "application_id")
    )
    if mark not in (0, _MARK) or (has_tables and not mark):
        raise UsageError(
            f"{path} is a database of another program",
            next="move it, or set FIRESTEEL_HOME to another folder",
        )
    if version > SCHEMA:
        raise UsageError(
            f"{path} was written by a newer firesteel: its form is {version}, this one reads {SCHEMA}",
            next="the newer firesteel again, or FIRESTEEL_HOME=/another/folder for this one",
        )
    return version


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Locked, full and forbidden files are OperationalErrors, and not damaged."""
    return not isinstance(error, sqlite3.OperationalError) or "malformed" in str(error)


def _set_aside(home: Home, path: Path, error: Exception) -> str:
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            break
    for end in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).replace(aside.with_name(aside.name + end))
    with suppress(FileNotFoundError):  # another process was faster
        path.replace(aside)
    return f"{path} is damaged ({error}); it is now {aside.name}, and a new history was begun"


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        said = str(error)
        if "locked" in said:
            raise FiresteelError(
                f"{path} was busy for {_PATIENCE_S} s", next="try again in a moment"
            ) from error
        if "full" in said or "readonly" in said or "unable to open" in said or "disk I/O" in said:
            raise HostNotReady(
                f"{path} cannot be written: {said}",
                next="free some space, or set FIRESTEEL_HOME=/path/with/space",
            ) from error
        raise FiresteelError(f"{path}: {said}", next="firesteel history") from error
    except sqlite3.DatabaseError as error:
        raise FiresteelError(
            f"{path} is damaged: {error}", next="firesteel history, which sets it aside"
        ) from error


def _shown(value: Any) -> Any:
    """Of a row that may hold what an older firesteel took in as it was."""
    return printable(value) if isinstance(value, str) else value


def _about(run: BenchRun) -> str:
    """The run without what has tables of its own."""
    return json.dumps(asdict(replace(run, points=(), figures=())), separators=(",", ":"))
