"""The history: every run with all its samples, in one SQLite file under FIRESTEEL_HOME.

Every sample is its own transaction, so a killed process loses nothing that it had added, and its run can
be continued (`resume`). The file is in WAL mode and is not flushed to disk with every sample, which would
disturb the measurement: only a power failure can lose the last samples.

Several processes may write at once, each its own run; a lock file keeps two writers off the same run. A
damaged file is renamed and a new one is started; a file of a newer firesteel is left alone.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from firesteel.bench import measurements
from firesteel.bench.measurements import BenchRun, RequestSample, StoredRun
from firesteel.bench.results.figures import with_figures
from firesteel.edge.home import Home, Locked, lock, writable_folder
from firesteel.edge.records import HISTORY_SCHEMA, history_path
from firesteel.errors import FiresteelError, HostNotReady, UsageError, printable, printable_json
from firesteel.values import Value, plain, replace

_APPLICATION_ID = 0x46495245
"""`FIRE`, so that the database of another program is not mistaken for ours."""
_TIMEOUT_S = 10
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_LAST = re.compile(r"last(?:~(\d{1,6}))?")
_CHECKED_BYTES = 64 * 2**20
"""A file up to this size is checked before it is used."""
_WAL_PAGES = 8000
"""32 MiB before a checkpoint moves the log into the file, which waits for the disk."""
_MAX_OF_LAUNCH = 100
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


_DECODE = "json_extract(text, '$.decode_tokens_per_s.value')"


class RunSummary(Value):
    """A run in a list."""

    id: str
    began: str
    model: str
    engine: str | None
    version: str | None
    origin: str
    """`measured here` or `reported`."""
    is_whole: bool
    points: int
    samples: int
    decode_tokens_per_s: float | None = None
    """Of one stream, in the first load that has this figure."""


def new_run_id() -> str:
    """Sorts by time; the suffix separates runs of the same second."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class History:
    """`with open_history(home) as history: ...`"""

    def __init__(self, home: Home, file: sqlite3.Connection, notes: tuple[str, ...]) -> None:
        self.notes = notes
        """Problems that were found when it was opened; usually empty."""
        self._home, self._file = home, file
        self._locks = ExitStack()
        self._claimed: set[str] = set()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for name in self._claimed:
            self._lock_path(name).unlink(missing_ok=True)
        self._locks.close()
        with suppress(sqlite3.Error):
            self._file.close()

    def begin(self, run: BenchRun, origin: str = "measured here", source: str = "") -> None:
        """Add the run to the history, without samples."""
        self._claim(run.id)
        with self._transaction() as file:
            if file.execute("SELECT 1 FROM runs WHERE id = ?", (run.id,)).fetchone():
                raise UsageError(f"run {run.id} exists already", next=f"firesteel bench show {run.id}")
            subject = run.subject
            file.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (run.id, run.began, origin, source, subject.model, subject.engine, subject.version,
                 subject.launch_key, run.is_whole, _about(run)),
            )  # fmt: skip
            self._write_parts(file, run)

    def is_begun(self, run_id: str) -> bool:
        """Whether this process has begun or resumed it."""
        return run_id in self._claimed

    def add(self, run_id: str, *samples: RequestSample) -> None:
        """The samples are stored when this returns."""
        self._need_claim(run_id)
        rows = [(run_id, sample.point, sample.repetition, measurements.to_json(sample)) for sample in samples]
        with self._transaction() as file:
            file.executemany("INSERT INTO samples (run, point, repetition, text) VALUES (?, ?, ?, ?)", rows)

    def finish(self, run: BenchRun) -> None:
        """Store the results, complete or not; may be called again with newer figures."""
        self._need_claim(run.id)
        with self._transaction() as file:
            file.execute(
                "UPDATE runs SET text = ?, is_whole = ?, engine = ?, version = ?, launch_key = ?"
                " WHERE id = ?",
                (_about(run), run.is_whole, run.subject.engine, run.subject.version, run.subject.launch_key,
                 run.id),
            )  # fmt: skip
            self._write_parts(file, run)

    def add_points(self, run: BenchRun) -> None:
        """Store the points that the run has gained since it began."""
        self._need_claim(run.id)
        with self._transaction() as file:
            self._write_parts(file, run)

    @staticmethod
    def _write_parts(file: sqlite3.Connection, run: BenchRun) -> None:
        points = [(run.id, index, measurements.to_json(point)) for index, point in enumerate(run.points)]
        file.executemany("INSERT OR IGNORE INTO points VALUES (?, ?, ?)", points)
        file.execute("DELETE FROM figures WHERE run = ?", (run.id,))
        rows = [(run.id, index, measurements.to_json(found)) for index, found in enumerate(run.figures)]
        file.executemany("INSERT INTO figures VALUES (?, ?, ?)", rows)

    def resume(self, word: str) -> StoredRun:
        """An interrupted run to continue: its points, settings and samples so far."""
        stored = self.run(word)
        run = stored.run
        if run.is_whole or not stored.is_own:
            why = "is complete" if run.is_whole else f"is {stored.origin}, not measured here"
            raise UsageError(f"run {run.id} {why} and cannot be continued", next="firesteel bench")
        self._claim(run.id)
        with self._transaction() as file:  # the figures will be older than the samples
            file.execute("DELETE FROM figures WHERE run = ?", (run.id,))
        # Read again: another process may have added samples before it released the run.
        return self.run(run.id)

    def runs(self, limit: int = 50) -> tuple[RunSummary, ...]:
        """The newest first."""
        rows = self._select(
            "SELECT id, began, model, engine, version, origin, is_whole,"
            " (SELECT count(*) FROM points WHERE run = runs.id),"
            " (SELECT count(*) FROM samples WHERE run = runs.id),"
            f" (SELECT {_DECODE} FROM figures WHERE run = runs.id AND json_valid(text)"
            f" AND typeof({_DECODE}) IN ('integer', 'real') ORDER BY rowid LIMIT 1)"
            " FROM runs ORDER BY began DESC, rowid DESC LIMIT ?",
            limit,
        )
        # A row may hold text that an older firesteel imported as it was.
        return tuple(replace(RunSummary(*map(printable_json, row)), is_whole=bool(row[6])) for row in rows)

    def run(self, word: str) -> StoredRun:
        """By id, the beginning of an id, `last`, or `last~1` for the one before."""
        name = self.find(word)
        [(origin, source)] = self._select("SELECT origin, source FROM runs WHERE id = ?", name)
        run, where = self.without_samples(name), self._where(name)
        samples = self._texts("samples", name)
        loaded = tuple(
            measurements.validate_sample(measurements.load_json(text, where), where) for text in samples
        )
        return StoredRun(with_figures(run, loaded), loaded, origin, printable(source))

    def runs_of(self, *launch_keys: str | None) -> tuple[BenchRun, ...]:
        """The newest runs of these launches that were measured here, without samples."""
        keys = [key for key in launch_keys if key]
        rows = self._select(
            "SELECT id FROM runs WHERE origin = 'measured here'"
            f" AND launch_key IN ({', '.join('?' * len(keys))}) ORDER BY began DESC LIMIT ?",
            *keys,
            _MAX_OF_LAUNCH,
        )
        return tuple(self.without_samples(name) for (name,) in rows)

    def without_samples(self, name: str) -> BenchRun:
        """By its full id: the figures as they were stored, which is much faster to read."""
        where = self._where(name)
        [(about,)] = self._select("SELECT text FROM runs WHERE id = ?", name)
        texts = {table: self._texts(table, name) for table in ("points", "figures")}
        parts = {
            table: [measurements.load_json(each, where) for each in rows] for table, rows in texts.items()
        }
        return measurements.validate_run({**measurements.load_json(about, where), **parts}, where)

    def _texts(self, table: str, name: str) -> list[str]:
        """A sample's rowid is the order in which it was added; points and figures are stored in theirs."""
        return [
            text for (text,) in self._select(f"SELECT text FROM {table} WHERE run = ? ORDER BY rowid", name)
        ]

    def _where(self, name: str) -> str:
        return f"run {name} in {history_path(self._home)}"

    def find(self, word: str) -> str:
        """The full id."""
        if last := _LAST.fullmatch(word):
            return self._from_last(int(last[1] or 0))
        if not _ID.fullmatch(word):
            raise UsageError("that is not the id of a run", next="firesteel bench list, for the list")
        query = "SELECT id FROM runs WHERE id = ? OR substr(id, 1, ?) = ? ORDER BY id = ? DESC LIMIT 2"
        rows = self._select(query, word, len(word), word, word)
        if not rows:
            raise UsageError(f"there is no run {word}", next="firesteel bench list, for the list")
        if len(rows) > 1 and rows[0][0] != word:
            both = " and ".join(name for (name,) in rows)
            raise UsageError(f"{word} is the beginning of several ids: {both}", next="type more of the id")
        return str(rows[0][0])

    def _from_last(self, back: int) -> str:
        rows = self._select(
            "SELECT id FROM runs WHERE origin = 'measured here'"
            " ORDER BY began DESC, rowid DESC LIMIT 1 OFFSET ?",
            back,
        )
        if not rows:
            few = f"fewer than {back + 1} runs were measured here"
            raise UsageError(few if back else "no run was measured here yet", next="firesteel bench")
        return str(rows[0][0])

    def delete(self, word: str) -> str:
        name = self.find(word)
        self._claim(name)
        with self._transaction() as file:
            file.execute("DELETE FROM runs WHERE id = ?", (name,))
        return name

    def _claim(self, name: str) -> None:
        if not _ID.fullmatch(name):
            raise UsageError(
                "that is not the id of a run", next="letters, digits, `.`, `_` and `-`, at most 80"
            )
        if name in self._claimed:
            return
        try:
            self._locks.enter_context(lock(self._lock_path(name)))
        except Locked:
            raise UsageError(
                f"run {name} is being measured by another process", next="firesteel bench list"
            ) from None
        self._claimed.add(name)

    def _lock_path(self, name: str) -> Path:
        return self._home.root / "locks" / f"bench-{name}.lock"

    def _need_claim(self, name: str) -> None:
        if name not in self._claimed:
            raise FiresteelError(f"run {name} was not begun here", next=f"firesteel bench show {name}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing."""
        with _readable_errors(history_path(self._home)):
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield self._file
                self._file.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._file.execute("ROLLBACK")
                raise

    def _select(self, query: str, *values: object) -> list[Any]:
        with _readable_errors(history_path(self._home)):
            return self._file.execute(query, values).fetchall()


def open_history(home: Home) -> History:
    path = history_path(home)
    notes: tuple[str, ...] = ()
    with writable_folder(home.root), _readable_errors(path):
        try:
            file = _open(path)
        except sqlite3.DatabaseError as error:
            # Locked, full and forbidden files are OperationalErrors and are not damaged.
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                raise
            notes = (_rename_damaged(path, error),)
            file = _open(path)
    return History(home, file, notes)


def _open(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        path.chmod(0o600)  # a launch may carry secrets in its environment
        version = _check_owner(path, file)
        if path.stat().st_size <= _CHECKED_BYTES:
            result = file.execute("PRAGMA quick_check(1)").fetchone()[0]
            if result != "ok":
                raise sqlite3.DatabaseError(f"malformed: {result}")
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = NORMAL")
        file.execute("PRAGMA foreign_keys = ON")
        file.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        if not version:
            file.executescript(
                f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {HISTORY_SCHEMA};"
                f" PRAGMA application_id = {_APPLICATION_ID}; COMMIT;"
            )
    except BaseException:
        file.close()
        raise
    return file


def _check_owner(path: Path, file: sqlite3.Connection) -> int:
    """Its schema version; 0 for a new file. Tables come first: a process that creates them sets the id as
    well."""
    has_tables = file.execute("SELECT 1 FROM sqlite_master").fetchone()
    version, application_id = (
        int(file.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("user_version", "application_id")
    )
    if application_id not in (0, _APPLICATION_ID) or (has_tables and not application_id):
        raise UsageError(
            f"{path} belongs to another program",
            next="move it, or set FIRESTEEL_HOME to another folder",
        )
    if version not in (0, HISTORY_SCHEMA):
        raise UsageError(
            f"{path} is from another release of firesteel: its schema is {version}, this one reads "
            f"{HISTORY_SCHEMA}",
            next="use that release, or set FIRESTEEL_HOME=/another/folder for this one",
        )
    return version


def _rename_damaged(path: Path, error: Exception) -> str:
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            break
    for end in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).replace(aside.with_name(aside.name + end))
    with suppress(FileNotFoundError):  # another process was faster
        path.replace(aside)
    return f"{path} is damaged ({error}); it was renamed to {aside.name}, and a new history was started"


@contextmanager
def _readable_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        message = str(error)
        if "locked" in message:
            raise FiresteelError(f"{path} was busy for {_TIMEOUT_S} s", next="try again later") from error
        if "unable to open" in message:
            next(path.parent.iterdir(), None)  # without permission, this raises the right error
        if any(word in message for word in ("full", "readonly", "unable to open", "disk I/O")):
            raise HostNotReady(
                f"{path} cannot be written: {message}",
                next="free some space, or set FIRESTEEL_HOME=/path/with/space",
            ) from error
        raise FiresteelError(f"{path}: {message}", next="firesteel bench list") from error
    except sqlite3.DatabaseError as error:
        raise FiresteelError(
            f"{path} is damaged: {error}", next="firesteel bench list, which renames it"
        ) from error


def _about(run: BenchRun) -> str:
    """The run without the parts that have their own tables."""
    return json.dumps(plain(replace(run, points=(), figures=())), separators=(",", ":"))
