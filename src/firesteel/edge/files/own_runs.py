"""The user's own benchmark runs, read for the planner from `history.db` under FIRESTEEL_HOME.

`bench.results.history` writes that file and knows all of it. Here only what a plan of the same launch trusts
more than any estimate is read, and checked first: rows with impossible figures are skipped. A file that
cannot be read, or that a newer firesteel wrote, counts as empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from firesteel.edge.files.home import Home
from firesteel.errors import printable
from firesteel.planner.speed.own_runs import OwnRun
from firesteel.units import Band

SCHEMA = 2
"""`PRAGMA user_version` of the file; it goes up when an older firesteel can no longer read it."""
_MAX_ROWS = 500
_MAX_TEXT = 2**16
_MAX_RATE = 1e9
_QUERY = """
    SELECT runs.id, runs.began, runs.version, runs.launch_key, figures.text
    FROM runs JOIN figures ON figures.run = runs.id
    WHERE runs.origin = 'measured here' AND runs.launch_key IS NOT NULL AND length(figures.text) < ?
    ORDER BY runs.began DESC, runs.id, figures.point LIMIT ?
"""


def history_path(home: Home) -> Path:
    return home.root / "history.db"


def read_own_runs(home: Home) -> Mapping[str, tuple[OwnRun, ...]]:
    """By `launch_key`, the newest first."""
    path = history_path(home)
    if not path.is_file():
        return {}
    import sqlite3  # lazy: most homes have no history, and every plan comes through here

    try:
        runs = list(_rows(path, sqlite3))
    except sqlite3.Error:
        return {}
    by_key: dict[str, list[OwnRun]] = {}
    for run in runs:
        by_key.setdefault(run.key, []).append(run)
    return {key: tuple(runs) for key, runs in by_key.items()}


def _rows(path: Path, sqlite3: Any) -> Iterator[OwnRun]:
    file = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2)
    try:
        if file.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
            return
        for row in file.execute(_QUERY, (_MAX_TEXT, _MAX_ROWS)).fetchall():
            if run := _own_run(*row):
                yield run
    finally:
        file.close()


def _own_run(run: object, began: object, version: object, key: object, text: object) -> OwnRun | None:
    """None for a row that `bench` cannot have written."""
    seen = _date(began)
    if not isinstance(key, str) or not re.fullmatch("[0-9a-f]{32}", key) or not seen:
        return None
    try:
        figures = json.loads(str(text))
        point = figures["point"]
        return OwnRun(
            key=key,
            run=str(run),
            seen=seen,
            version=printable(str(version)) if version else None,
            text=str(point["text"]),
            users=_count(point["users"]),
            prompt_tokens=_count(point["prompt_tokens"]),
            shared_tokens=_count(point["shared_tokens"], minimum=0),
            answer_tokens=_count(point["answer_tokens"]),
            decode_tps=_band(figures["decode_tokens_per_s"]),
            total_tps=_band(figures["total_tokens_per_s"]),
            prefill_tps=_band(figures["prefill_tokens_per_s"]),
            ttft_ms=_rate(figures["ttft_ms"].get("p50")),
            # The user's own prompts have no kind of text and no known length: no evidence for a plan either.
            is_open_loop=point["rate_per_s"] is not None
            or _count(point["turns"]) > 1
            or bool(point.get("prompts")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _date(began: object) -> str | None:
    try:
        return date.fromisoformat(str(began)[:10]).isoformat()
    except ValueError:
        return None


def _count(value: object, minimum: int = 1) -> int:
    if not isinstance(value, int) or not minimum <= value <= 2**24:
        raise ValueError(value)
    return value


def _rate(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 < value < _MAX_RATE:
        raise ValueError(value)
    return float(value)


def _band(figure: Mapping[str, Any] | None) -> tuple[Band, int] | None:
    """With the number of values behind it."""
    if figure is None:
        return None
    low, value, high = figure["low"], _rate(figure["value"]), _rate(figure["high"])
    if value is None or high is None or not 0 <= low <= value <= high:
        raise ValueError(figure)
    return Band(float(low), value, high), _count(figure["n"])
