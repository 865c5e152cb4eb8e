"""Files that become values of the planner and the catalog, each checked before it is used.

`history.db`: the user's own benchmark runs, which `bench.results.history` writes. A plan of the same launch
trusts them more than any estimate, so a row with an impossible figure or date is skipped, and a file that
cannot be read, or that a newer firesteel wrote, counts as empty.

`measured_calls.json`: what `verify --agent` found about the tool calls of services.

`engines-data/inspected/sha256-1b2c3d4e....json`: what `image inspect` learned about an image. And recipes for
images, by name or from a file of the user's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from firesteel.catalog.image import ImageInspection
from firesteel.catalog.image_recipe import ImageRecipe, image_recipe, read_image_recipe
from firesteel.edge.files import read_text
from firesteel.edge.home import Home, exclusive, read_json, write_state
from firesteel.errors import FiresteelError, UsageError, printable
from firesteel.planner.propose import MeasuredCalls
from firesteel.planner.speed.own_runs import OwnRun
from firesteel.units import Band
from firesteel.values import InvalidValue, from_json

HISTORY_SCHEMA = 2
"""`PRAGMA user_version` of the file; it goes up when an older firesteel can no longer read it."""
_MAX_RUNS = 500
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
        if file.execute("PRAGMA user_version").fetchone()[0] != HISTORY_SCHEMA:
            return
        for row in file.execute(_QUERY, (_MAX_TEXT, _MAX_RUNS)).fetchall():
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


_MAX_CALLS_BYTES = 2**18
_MAX_CALLS = 500


def save_measured_calls(home: Home, measured: MeasuredCalls) -> None:
    """Appends the newest; the oldest rows are dropped."""
    path = _calls_path(home)
    with exclusive(path):
        others = [row for key, row in read_measured_calls(home).items() if key != measured.key]
        write_state(path, [*others, measured][-_MAX_CALLS:])


def read_measured_calls(home: Home) -> Mapping[str, MeasuredCalls]:
    """By `launch_key`, the oldest first; rows that firesteel cannot have written are skipped."""
    rows = read_json(_calls_path(home), _MAX_CALLS_BYTES)
    parsed = (_measured_calls(row) for row in rows) if isinstance(rows, list) else ()
    return {row.key: row for row in parsed if row}


def _calls_path(home: Home) -> Path:
    return home.root / "measured_calls.json"


def _measured_calls(row: object) -> MeasuredCalls | None:
    try:
        found = from_json(MeasuredCalls, row)
    except InvalidValue:
        return None
    counts = (found.tools, found.turns, found.tools_fail or 1, found.turns_fail or 1)
    is_sound = all(0 <= count <= 2**16 for count in counts)
    return found if is_sound and re.fullmatch("[0-9a-f]{32}", found.key) and _date(found.seen) else None


def inspections_folder(home: Home) -> Path:
    return home.learned / "inspected"


def read_inspections(home: Home) -> tuple[ImageInspection, ...]:
    """The oldest first; a damaged file is an error that names it."""
    found = [_read_inspection(path) for path in sorted(inspections_folder(home).glob("*.json"))]
    return tuple(sorted(found, key=lambda inspection: inspection.on))


def _read_inspection(path: Path) -> ImageInspection:
    try:
        return from_json(ImageInspection, json.loads(path.read_text("utf-8", errors="replace")))
    except (ValueError, InvalidValue) as error:
        raise FiresteelError(
            f"{path} is damaged ({error})", next="delete it and run `firesteel image inspect` again"
        ) from error


def load_image_recipe(what: str) -> tuple[str, ImageRecipe]:
    """Name and recipe; a file's name is the recipe's, as docker allows it in a tag."""
    if not what.endswith((".yaml", ".yml")):
        return what, image_recipe(what)
    path = Path(what)
    if not re.fullmatch(r"[a-z0-9]+([._-][a-z0-9]+)*", path.stem):
        raise UsageError(
            f"{path.name} cannot name an image: only lower case letters, digits, and dots or dashes between",
            next=f"mv {path} my-image.yaml",
        )
    text = read_text(path, next="firesteel image build --list")
    return path.stem, read_image_recipe(str(path), text)
