"""What stands below the models: the log of one, the requests, or who waits. Pure."""

from __future__ import annotations

import time
from datetime import datetime

from rich.text import Text

from firesteel.errors import printable
from firesteel.screens.top.bars import Glyphs
from firesteel.screens.top.snapshot import LoggedRequest, Snapshot
from firesteel.units import show_seconds
from firesteel.values import Value

_PARTS = ("wait", "prompt", "answer")
_STYLES = ("yellow", "magenta", "cyan")


def log_lines(snapshot: Snapshot, name: str) -> list[Text]:
    if snapshot.log_of != name:
        return [Text("...", "dim")]
    if not snapshot.log:
        return [Text(f"{printable(name)} has no log: it was never started here", "dim")]
    return [Text(printable(line)) for line in snapshot.log]


def queue_lines(snapshot: Snapshot) -> list[Text]:
    state = snapshot.state
    if not state.waiting:
        return [Text("nobody waits", "dim")]
    rows = [
        Text(
            f"{show_seconds(max(0.0, snapshot.at - row.since)):>8}  {printable(row.model, 20):<20} "
            f"{printable(row.key, 16) or '-':<16} {printable(row.doing)}"
        )
        for row in state.queue
    ]
    if rows:
        return rows
    waiting = [model for model in state.models if model.waiting]
    return [
        Text(f"{model.waiting:>4} for {printable(model.name)}: {printable(model.doing or model.phase)}")
        for model in waiting
    ]


def bar_legend(glyphs: Glyphs) -> str:
    return " ".join(f"{fill} {part}" for fill, part in zip(glyphs.fills, _PARTS, strict=True))


def request_lines(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Text]:
    """Newest first, with a bar of what each waited for: queue and load, prompt, answer."""
    rows = snapshot.requests
    names = max((len(row.model) for row in rows), default=5)
    keys = max((len(row.key) for row in rows), default=0)
    columns = _RequestColumns(max(5, min(14, names)), min(10, keys))
    head = f"{'ENDED':<12} {'MODEL':<{columns.model}} " + (f"{'KEY':<{columns.key}} " if keys else "")
    head += f"{'HTTP':>4} {'WAITED':>7} {'PROMPT':>7} {'TOTAL':>7} {'IN':>6} {'OUT':>5}  "
    lines = [Text(head, "bold")]
    if not rows:
        return [*lines, Text("no such request", "dim")]
    return lines + [_request(row, snapshot.at, columns, width - len(head), glyphs) for row in rows]


class _RequestColumns(Value):
    model: int
    key: int
    """0: no request had a key."""


def _request(
    row: LoggedRequest, now: float, columns: _RequestColumns, bar_width: int, glyphs: Glyphs
) -> Text:
    first = "-" if row.first_s is None else _seconds(row.first_s - row.waited_s)
    tokens = f"{_count(row.prompt_tokens):>6} {_count(row.completion_tokens):>5}"
    is_bad = row.status >= 400 or row.how in ("broke", "refused")
    key = f"{printable(row.key, columns.key):<{columns.key}} " if columns.key else ""
    line = Text(
        f"{when(row.at, now):<12} {printable(row.model, columns.model):<{columns.model}} {key}"
        f"{row.status:>4} {_seconds(row.waited_s):>7} ",
        "red" if is_bad else "",
    )
    if row.why:  # in place of times that say little then
        return line.append(f"after {_seconds(row.total_s)}: {printable(row.why)}")
    line.append(f"{first:>7} {_seconds(row.total_s):>7} {tokens}  ")
    return line.append_text(_waterfall(row, bar_width, glyphs))


def _waterfall(row: LoggedRequest, width: int, glyphs: Glyphs) -> Text:
    bar, total = Text(), row.total_s
    if width <= 0 or total <= 0:
        return bar
    first_s = row.total_s if row.first_s is None else row.first_s
    for end_s, fill, style in zip((row.waited_s, first_s, total), glyphs.fills, _STYLES, strict=True):
        cells = round(min(end_s, total) / total * width) - len(bar)
        bar.append(fill * max(0, cells), style)
    return bar


def when(at: float, now: float) -> str:
    """`10:31:05` today, `Nov 15 10:31` before."""
    then = datetime.fromtimestamp(at)
    if then.date() == datetime.fromtimestamp(now).date():
        return then.strftime("%H:%M:%S")
    return time.strftime("%b %d %H:%M", then.timetuple())


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else str(tokens)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
