"""The curves on disk: three resolutions in `FIRESTEEL_HOME/curves.db`, an SQLite file of bounded size.

    store = CurveStore(path)
    store.add([CurveRow("coder", start, ...), ...], now)      one transaction: a crash loses this sample only
    store.query(RANGES["24h"], now) -> Points

A row is what happened to one model in one step. A percentile of percentiles is wrong, so a row keeps the
histograms that its percentiles come from: a longer step adds up the counts and computes its own.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby, pairwise
from math import inf
from pathlib import Path
from typing import NotRequired, TypedDict

from firesteel.edge.home import Home
from firesteel.gateway.admin.meter import FIRST_S, GAP_S
from firesteel.gateway.service_config import ModelConfig
from firesteel.gateway.sqlite_file import SqliteFile, open_read_only
from firesteel.units import Band
from firesteel.values import Value

Counts = tuple[int, ...]


class CurveRow(Value):
    """`model` is empty for the whole machine. None: not known."""

    model: str
    start: int
    """Seconds since 1970, a multiple of the step."""
    seconds: float
    """How much of the step was watched."""
    tokens: float = 0.0
    firsts: Counts = ()
    """Histogram of times to the first token; empty: none."""
    gaps: Counts = ()
    queue: float | None = None
    """The longest; so for the cache and the memory."""
    kv_used: float | None = None
    """Share of the KV cache, 0 to 1."""
    memory_bytes: float | None = None
    power_w: float | None = None
    """The average."""
    first_least: float | None = None
    """Of the times to the first token; so for the next three."""
    first_most: float | None = None
    gap_least: float | None = None
    gap_most: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None


def merged(rows: Sequence[CurveRow], start: int) -> CurveRow:
    """Rows of one model as one row of a longer step."""
    seconds = sum(row.seconds for row in rows)
    powers = [(row.power_w, row.seconds) for row in rows if row.power_w is not None]
    power_s = sum(weight for _, weight in powers)
    return CurveRow(
        rows[0].model,
        start,
        seconds,
        sum(row.tokens for row in rows),
        added(row.firsts for row in rows),
        added(row.gaps for row in rows),
        _most(row.queue for row in rows),
        _most(row.kv_used for row in rows),
        _most(row.memory_bytes for row in rows),
        sum(power * weight for power, weight in powers) / power_s if power_s > 0 else None,
        *least_and_most((row.first_least, row.first_most) for row in rows),
        *least_and_most((row.gap_least, row.gap_most) for row in rows),
    )


def added(histograms: Iterable[Counts]) -> Counts:
    """Position by position; empty if all are."""
    known = [counts for counts in histograms if counts]
    return tuple(map(sum, zip(*known, strict=False))) if known else ()


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def least_and_most(seen: Iterable[tuple[float | None, float | None]]) -> tuple[float | None, float | None]:
    """Of several ranges; None: nothing was seen."""
    known = [(least, most) for least, most in seen if least is not None and most is not None]
    return (min(least for least, _ in known), max(most for _, most in known)) if known else (None, None)


def first_quantile(
    counts: Counts, share: float, least: float | None = None, most: float | None = None
) -> float | None:
    return quantile(FIRST_S, counts, share, least, most)


def quantile(
    bounds: Sequence[float],
    counts: Counts,
    share: float,
    least: float | None = None,
    most: float | None = None,
) -> float | None:
    """Interpolated within its bucket, as Prometheus does: right to the width of the bucket. Never less than
    `least` or more than `most`, which were seen.

    None without values; beyond the last bound `most`, or else that bound, a lower limit.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    low, high = least or 0.0, inf if most is None else most
    below, so_far = 0.0, 0
    for bound, count in zip(bounds, counts, strict=False):
        if so_far + count >= rank:
            first, last = max(below, low), min(bound, high)
            return min(high, max(low, first + (last - first) * (rank - so_far) / count))
        below, so_far = bound, so_far + count
    return bounds[-1] if most is None else most


def packed(counts: Counts) -> bytes | None:
    """For the database: 4 bytes a bucket, and nothing for an empty histogram."""
    return array("I", (min(count, 2**32 - 1) for count in counts)).tobytes() if any(counts) else None


def unpacked(data: bytes | None) -> Counts:
    return tuple(array("I", data)) if data and len(data) % 4 == 0 else ()


MAX_MODELS = 400
"""Names with rows, old ones of the service file included; beyond it the longest unused go first."""
SAMPLE_S = 5
_ROLL_UP_S = 60
_VERSION = 2


class CurveRange(Value):
    """A resolution: `points` steps back from now."""

    name: str
    step_s: int
    points: int

    @property
    def span_s(self) -> int:
        return self.step_s * self.points

    def start(self, now: float) -> int:
        """Of its first step. The last one is that of the last sample, which may be under way."""
        return ((int(now) - SAMPLE_S) // self.step_s - self.points + 1) * self.step_s


RANGES: Mapping[str, CurveRange] = {
    each.name: each
    for each in (CurveRange("15m", SAMPLE_S, 180), CurveRange("24h", 300, 288), CurveRange("30d", 7200, 360))
}
_STEPS = tuple(each.step_s for each in RANGES.values())

VALUES = (
    "tokens_per_s", "ttft_p50_s", "ttft_p95_s", "gap_p50_s", "gap_p95_s", "queue", "kv_used", "memory_bytes",
    "power_w",
)  # fmt: skip
"""Columns that are shown. Percentiles are stored next to their histograms: a query computes nothing."""
_MERGED = (
    "seconds", "tokens", "firsts", "gaps", "queue", "kv_used", "memory_bytes", "power_w", "first_least",
    "first_most", "gap_least", "gap_most",
)  # fmt: skip
_TABLE = """
CREATE TABLE curves (
  step_s INTEGER NOT NULL, model TEXT NOT NULL, start INTEGER NOT NULL, seconds REAL NOT NULL,
  tokens REAL NOT NULL, tokens_per_s REAL, firsts BLOB, ttft_p50_s REAL, ttft_p95_s REAL, gaps BLOB,
  gap_p50_s REAL, gap_p95_s REAL, queue REAL, kv_used REAL, memory_bytes REAL, power_w REAL,
  first_least REAL, first_most REAL, gap_least REAL, gap_most REAL, first_count INTEGER,
  PRIMARY KEY (step_s, start, model)
) WITHOUT ROWID;
"""
FEW = 20
"""Requests; of fewer a 95th percentile is only the largest, so all of them are shown as a range."""
_INSERT = """INSERT OR REPLACE INTO curves (
  step_s, model, start, seconds, tokens, tokens_per_s, firsts, ttft_p50_s, ttft_p95_s, gaps, gap_p50_s,
  gap_p95_s, queue, kv_used, memory_bytes, power_w, first_least, first_most, gap_least, gap_most, first_count
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

Point = tuple[float | None, ...]
"""In the order of `VALUES`, and then `_COUNTED`."""
_COUNTED = ("first_count", "first_least", "first_most")
Points = dict[str, dict[int, Point]]
"""By model (empty: the machine) and start."""


def curves_path(home: Home) -> Path:
    return home.root / "curves.db"


class CurveStore:
    """A sample is written to the finest resolution. The coarser ones are made from the finer rows once a
    minute, the step under way included, so that nothing is held in memory that a crash could lose; making
    them again gives the same rows. Rows that are older than their range are removed. So the file has at most
    `sum(range.points) + slack` rows a model, whatever the traffic: about 0.25 MB a model.

    Separate from the request log: that is pruned by other rules, and a file that is damaged loses less.
    Called from one thread at a time, never from the loop.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = SqliteFile(path, _prepare)
        self._problem = ""
        self._rolled_up_at = float("-inf")

    def add(self, rows: Sequence[CurveRow], now: float) -> str | None:
        """Return a new problem, for the operator: the same one only once. A damaged file is moved aside."""
        problem = ""
        try:
            try:
                self._write(rows, now)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                # One damaged file is kept: another one replaces it.
                aside = self._file.move_aside("damaged")
                problem = f"{self._path} could not be used ({error}); it was moved to {aside}"
                self._write(rows, now)
        except (sqlite3.Error, OSError) as error:
            self.close()
            problem = f"{self._path} cannot be written ({error}); the curves have a gap"
        is_new, self._problem = problem != self._problem, problem
        return problem if problem and is_new else None

    def close(self) -> None:
        self._file.close()

    def query(self, resolution: CurveRange, now: float, models: Collection[str] | None = None) -> Points:
        """Through a connection of its own; `models` None: all, and the machine."""
        points: Points = {}
        if not self._path.exists():
            return points
        with closing(open_read_only(self._path)) as database:
            if database.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                return points
            columns = ", ".join((*VALUES, *_COUNTED))
            query = f"SELECT model, start, {columns} FROM curves WHERE step_s = ? AND start BETWEEN ? AND ?"
            first, step_s = resolution.start(now), resolution.step_s
            if models is not None:
                query += f" AND model IN ({', '.join('?' * len(models))})"
            for model, start, *values in database.execute(
                query, (step_s, first, first + resolution.span_s, *(models or ()))
            ):
                points.setdefault(model, {})[start] = tuple(values)
        return points

    # --- writing ---

    def _write(self, rows: Sequence[CurveRow], now: float) -> None:
        with self._file.transaction() as database:
            if abs(now - self._rolled_up_at) >= _ROLL_UP_S or not rows:
                # A clock that was set back: rows of the future would end the roll-up for good.
                database.execute("DELETE FROM curves WHERE start > ?", (int(now) + SAMPLE_S,))
                self._insert(SAMPLE_S, rows)
                for fine, coarse in pairwise(_STEPS):
                    self._roll_up(fine, coarse)
                self._prune(now)
                self._rolled_up_at = now
            else:
                self._insert(SAMPLE_S, rows)

    def _insert(self, step_s: int, rows: Iterable[CurveRow]) -> None:
        self._file.connection().executemany(_INSERT, [_values(step_s, row) for row in rows])

    def _roll_up(self, fine_s: int, coarse_s: int) -> None:
        """Make the coarse rows again from the last one on: it may have been under way."""
        database = self._file.connection()
        newest = "SELECT max(start) FROM curves WHERE step_s = ?"
        since = database.execute(newest, (coarse_s,)).fetchone()[0] or 0
        query = (
            f"SELECT model, start / ? AS step, {', '.join(_MERGED)} FROM curves "
            "WHERE step_s = ? AND start >= ? ORDER BY step, model"
        )
        found = database.execute(query, (coarse_s, fine_s, since)).fetchall()
        for (step, model), group in groupby(found, key=lambda row: (row[1], row[0])):
            parts = [_row(model, step * coarse_s, each[2:]) for each in group]
            self._insert(coarse_s, [merged(parts, step * coarse_s)])

    def _prune(self, now: float) -> None:
        """After the roll-up. Fine rows stay until the coarse step that they belong to is over."""
        database = self._file.connection()
        slack = dict(zip(_STEPS, (*_STEPS[1:], 0), strict=True))
        for each in RANGES.values():
            oldest = each.start(now) - slack[each.step_s]
            database.execute("DELETE FROM curves WHERE step_s = ? AND start < ?", (each.step_s, oldest))
        names = "SELECT model FROM curves GROUP BY model ORDER BY max(start) DESC LIMIT -1 OFFSET ?"
        database.execute(f"DELETE FROM curves WHERE model IN ({names})", (MAX_MODELS,))


def _prepare(database: sqlite3.Connection) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        database.executescript(f"BEGIN IMMEDIATE; {_TABLE} PRAGMA user_version = {_VERSION}; COMMIT;")
    elif version != _VERSION:
        raise sqlite3.DatabaseError(f"it has version {version}")


def _values(step_s: int, row: CurveRow) -> tuple[object, ...]:
    firsts, gaps = row.firsts, row.gaps
    first_seen, gap_seen = (row.first_least, row.first_most), (row.gap_least, row.gap_most)
    return (
        step_s, row.model, row.start, row.seconds, row.tokens, row.tokens_per_s,
        packed(firsts), *(quantile(FIRST_S, firsts, share, *first_seen) for share in (0.5, 0.95)),
        packed(gaps), *(quantile(GAP_S, gaps, share, *gap_seen) for share in (0.5, 0.95)),
        row.queue, row.kv_used, row.memory_bytes, row.power_w, *first_seen, *gap_seen, sum(firsts),
    )  # fmt: skip


def _row(model: str, start: int, values: tuple[object, ...]) -> CurveRow:
    """From the columns of `_MERGED`."""
    seconds, tokens, firsts, gaps, *rest = values
    return CurveRow(model, start, seconds, tokens, unpacked(firsts), unpacked(gaps), *rest)  # type: ignore[arg-type]  # SQLite has no types


UNITS = {
    "tokens_per_s": "tokens/s", "ttft_p50_s": "s", "ttft_p95_s": "s", "gap_p50_s": "s", "gap_p95_s": "s",
    "queue": "requests", "kv_used": "share", "memory_bytes": "bytes", "power_w": "W",
}  # fmt: skip


class RangeJson(TypedDict):
    """What was planned; a figure outside it is worth a look."""

    low: float
    expected: float
    high: float


class FewJson(TypedDict):
    requests: int
    least: float | None
    most: float | None


class CurveJson(TypedDict):
    name: str
    model: str | None
    """None: the whole machine."""
    unit: str
    values: list[float | None]
    """One for each step, the oldest first; None: not known, or nothing happened."""
    band: RangeJson | None
    few: NotRequired[list[FewJson | None]]
    """For the time to the first token: where a step had few requests, all of them as a range."""


async def curves_document(
    resolution: CurveRange, start: int, points: Points, models: Mapping[str, ModelConfig]
) -> str:
    """As JSON, series by series: a month of 40 models takes a tenth of a second; streams go on."""
    parts = []
    for series in _series(resolution, start, points, models):
        parts.append(json.dumps(series))
        await asyncio.sleep(0)
    head = json.dumps({"range": resolution.name, "step_s": resolution.step_s, "start": start})
    return f'{head[:-1]}, "series": [{", ".join(parts)}]}}'


def _series(
    resolution: CurveRange, start: int, points: Points, models: Mapping[str, ModelConfig]
) -> Iterator[CurveJson]:
    starts = [start + index * resolution.step_s for index in range(resolution.points)]
    for model, found in sorted(points.items()):
        for column, name in enumerate(VALUES):
            values = [_rounded(found[at][column]) if at in found else None for at in starts]
            if any(value is not None for value in values):
                band = _band(name, models.get(model))
                curve = CurveJson(name=name, model=model or None, unit=UNITS[name], values=values, band=band)
                if name.startswith("ttft"):
                    curve["few"] = [_few(found[at]) if at in found else None for at in starts]
                yield curve


def _few(point: Point) -> FewJson | None:
    count, least, most = point[len(VALUES) :]
    if not count or count >= FEW or most is None:
        return None
    return FewJson(requests=int(count), least=_rounded(least), most=_rounded(most))


def _rounded(value: float | None) -> float | None:
    """Four digits: more cannot be seen in a chart, and the document is half as long."""
    return None if value is None else float(f"{value:.4g}")


def _band(name: str, model: ModelConfig | None) -> RangeJson | None:
    planned = model.planned if model else None
    if planned is None:
        return None
    if name == "memory_bytes":
        return _json(planned.memory_bytes)
    if name == "gap_p50_s" and planned.decode_tokens_per_s and not planned.speculates:  # one token a piece
        rate = planned.decode_tokens_per_s
        return RangeJson(low=1 / rate.high, expected=1 / rate.expected, high=1 / rate.low)
    if name == "tokens_per_s":
        return _json(planned.total_tokens_per_s)
    return None


def _json(planned: Band | None) -> RangeJson | None:
    return RangeJson(low=planned.low, expected=planned.expected, high=planned.high) if planned else None
