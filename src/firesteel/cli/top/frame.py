"""A snapshot and what the user selected -> the lines of the screen. Pure.

Every figure stands there in text; colour only repeats it. At 80 x 24 nothing is cut but long names and logs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from textwrap import wrap
from typing import Literal

from rich.text import Text

from firesteel.cli.top.client import CurveRangeName, LoggedRequest, Snapshot
from firesteel.errors import printable
from firesteel.gateway.state import MemoryStatus, ModelStatus
from firesteel.units import GIB, show_bytes, show_seconds
from firesteel.values import Value


class Glyphs(Value):
    """Of a terminal that has them, or ASCII."""

    fills: str = "█▓▒"
    """By model, in turn: a neighbour never has the same, so that colour is not needed to distinguish them."""
    other: str = "▚"
    whole: str = "░"
    """Of a request: prompt and answer, which came in one piece."""
    free: str = "·"
    limit: str = "│"
    levels: str = "▁▂▃▄▅▆▇█"
    cursor: str = "▸"


UNICODE = Glyphs()
ASCII = Glyphs("#%=", "~", "-", ".", "|", "_.-=+*%#", ">")
COLOURS = ("cyan", "green", "magenta", "yellow", "blue")


Panel = Literal["log", "requests", "queue"]
PANELS: tuple[Panel, ...] = ("log", "requests", "queue")
RANGES: tuple[CurveRangeName, ...] = ("15m", "24h", "30d")
MIN_WIDTH, MIN_HEIGHT = 40, 10
_MAX_NAME = 20
_CURVES = (
    ("tokens_per_s", "tok/s"), ("queue", "queue"),
    ("ttft_p95_s", "first s"), ("kv_used", "KV %"),
    ("gap_p95_s", "gap ms"), ("power_w", "power W"),
)  # fmt: skip
_STICKY = "\u00a0"
"""A blank at which a line is never broken."""
_SCALES = {"kv_used": 100.0, "gap_p95_s": 1000.0}
KEYS = "q quit  ↑↓ model  l load  u unload  p pin  tab log/requests/queue  ? help"
HELP = (
    "↑ ↓ or j k      select a model",
    "l               load it; says first what would be unloaded for it",
    "u               unload it; it first finishes its requests; or cancel its load",
    "p               pin it, so that it stays loaded, or unpin it",
    "tab             below: its log, the requests, or who waits",
    "1 2 3           curves of the last 15 minutes, 24 hours, 30 days",
    "s               requests: all, from 10 s on, from 60 s on",
    "m               requests: of all models, or of the selected one",
    "b f             requests: a day back, a day forward",
    "page up, down   scroll what is below",
    "q or Ctrl-C     quit; models and gateway go on",
)


class Selection(Value):
    """What the user chose to see."""

    model: str = ""
    panel: Panel = "log"
    range_name: CurveRangeName = "15m"
    scroll: int = 0
    slower_s: float | None = None
    days_back: int = 0
    is_one_model: bool = False
    """Requests of the selected model only."""
    message: str = ""
    """An answer or a question, until the next key."""
    shows_help: bool = False


def frame(
    snapshot: Snapshot, chosen: Selection, width: int, height: int, glyphs: Glyphs = UNICODE
) -> list[Text]:
    """Exactly `height` lines of at most `width` cells."""
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return _fitted([Text(f"too small: {MIN_WIDTH} x {MIN_HEIGHT} at least")], width, height)
    models = snapshot.state.models
    foot = _foot(chosen, width, glyphs)
    top = [_head(snapshot, width), *_file_problem(snapshot, width)[:2], *_memory(snapshot, width, glyphs)]
    room = height - len(top) - len(foot)
    index = next((index for index, model in enumerate(models) if model.name == chosen.model), 0)
    table_rows = min(len(models), max(3, room - 12)) or 1
    top += _table(models, index, width, table_rows, glyphs)
    if models:
        top += _detail(snapshot, models[index], chosen, width, glyphs)
    below = height - len(top) - len(foot)
    lines = top + _panel(snapshot, chosen, width, below, glyphs)
    return _fitted(_fitted(lines, width, height - len(foot)) + foot, width, height)


def once(snapshot: Snapshot, width: int, glyphs: Glyphs = UNICODE) -> list[Text]:
    """For `--once`: everything that has no end by itself is left out, and no line is cut."""
    models = snapshot.state.models
    lines = [_head(snapshot, width), *_file_problem(snapshot, width), *_memory(snapshot, width, glyphs)]
    lines += _table(models, None, width, len(models) or 1, glyphs)
    for model in models:
        if model.health:
            lines.append(Text(f"{printable(model.name)}: {printable(model.health.text)}"))
        if model.note:
            lines.append(Text(_note(model)))
    return lines


def _note(model: ModelStatus) -> str:
    """What the gateway noted about it last, with its name."""
    note = printable(model.note or "")
    return note if model.name in note else f"{printable(model.name)}: {note}"


def _file_problem(snapshot: Snapshot, width: int) -> list[Text]:
    problem = snapshot.state.problem
    says = "the service file has a mistake, and its last good version stays in use: "
    return _wrapped(Text(f"{says}{printable(problem)}", "bold red"), width) if problem else []


def _head(snapshot: Snapshot, width: int) -> Text:
    if snapshot.problem:
        return Text(f"firesteel top  {printable(snapshot.problem)}; trying again", "bold red")
    gpu = snapshot.state.gpu
    figures = []
    if gpu:
        figures = [
            *_figure(gpu.temperature_c, "°C"),
            *_figure(gpu.power_w, "W"),
            *_figure(gpu.clock_mhz, "MHz"),
            *(["SLOWED"] if gpu.throttle else []),
        ]
    right = "  ".join([" ".join(figures), time.strftime("%H:%M:%S", time.localtime(snapshot.at))]).strip()
    waiting = f"  waiting {snapshot.state.waiting}" if snapshot.state.waiting else ""
    left = Text.assemble(("firesteel top", "bold"), f"  {printable(snapshot.url)}", (waiting, "bold yellow"))
    left.truncate(max(0, width - len(right) - 1), overflow="ellipsis")
    style = "bold red" if gpu and gpu.throttle else ""
    return left + Text(right.rjust(width - left.cell_len), style)


def _figure(value: float | None, unit: str) -> Iterator[str]:
    if value is not None:
        yield f"{value:.0f} {unit}"


def _memory(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Text]:
    memory, models = snapshot.state.memory, snapshot.state.models
    bar = Text("memory ", "bold") + memory_bar(memory, models, width - 7, glyphs)
    limits = [
        *([f"{_gib(memory.total_bytes)} GiB"] if memory.total_bytes else []),
        *([f"models up to {_gib(memory.ceiling_bytes)}"] if memory.ceiling_bytes else []),
        *([f"guard {glyphs.limit} {_gib(memory.floor_bytes)}"] if memory.floor_bytes else []),
    ]
    legend = Text(", ".join(limits).replace(" ", _STICKY), "dim")
    parts = sorted(memory_parts(memory, models, glyphs), key=lambda part: part.name not in ("free", "other"))
    for part in parts:  # the free memory is the last to be cut off
        if part.bytes:
            legend.append(f" {part.fill}", part.style)
            legend.append(f"{_STICKY}{printable(part.name, _MAX_NAME)}{_STICKY}{_gib(part.bytes)}")
    lines = [Text("       ") + line for line in _wrapped(legend, width - 7)]
    return [bar, *lines[:2]]


def _gib(count: int | None) -> str:
    return "-" if count is None else f"{count / GIB:.1f}"


def _table(
    models: Sequence[ModelStatus], selected: int | None, width: int, rows: int, glyphs: Glyphs
) -> list[Text]:
    """`rows` models around the selected one."""
    if not models:
        return [Text("no models; add one to the service file", "dim")]
    name_width = max(5, min(_MAX_NAME, max(len(model.name) for model in models)))
    head = f"  {'MODEL':<{name_width}} {'STATE':<10} {'BUSY':>4} {'WAIT':>4} {'GiB':>6} {'TOK/S':>6}"
    head += f" {'KV':>4} {'DRAFT':>5}  HEALTH"
    first = max(0, min((selected or 0) - rows // 2, len(models) - rows))
    lines = [Text(head, "bold")]
    for index in range(first, min(first + rows, len(models))):
        lines.append(_row(models[index], index == selected, name_width, glyphs))
    if len(models) > rows:
        lines[0].append(f"  {first + 1} to {first + rows} of {len(models)}", "dim")
    return lines


def _row(model: ModelStatus, is_selected: bool, name_width: int, glyphs: Glyphs) -> Text:
    health = "-" if model.health is None else "ok" if model.health.ok else "NOT OK"
    state = f"{model.phase}*" if model.pinned else model.phase
    line = Text.assemble(
        f"{glyphs.cursor if is_selected else ' '} {printable(model.name, name_width):<{name_width}} ",
        (f"{state:<10}", {"ready": "green", "loading": "yellow", "cannot": "red"}.get(model.phase, "")),
        f" {model.busy or '-':>4} {model.waiting or '-':>4} {_gib(model.bytes or None):>6}",
        f" {_rate(model.tokens_per_s):>6} {_percent(model.kv_used):>4} {_percent(model.acceptance):>5}  ",
        (health, "bold red" if health == "NOT OK" else ""),
    )
    line.style = "reverse" if is_selected else ""
    return line


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _detail(
    snapshot: Snapshot, model: ModelStatus, chosen: Selection, width: int, glyphs: Glyphs
) -> list[Text]:
    """Of the selected model: its health, what it does, and its curves."""
    text = model.health.text if model.health else model.why or model.doing or ""
    sentence = Text(f"{printable(model.name)}: ", "bold")
    sentence.append(printable(text), "" if model.health is None or model.health.ok else "red")
    if model.phase == "off":
        sentence.append(_load_text(model, snapshot.state.memory))
    lines = _wrapped(sentence, width)[:3]
    if model.note:
        lines += _wrapped(Text(_note(model)), width)[:2]
    half = (width - 2) // 2
    cells = [
        _curve(snapshot, name, label, None if name == "power_w" else model.name, half, glyphs)
        for name, label in _CURVES
    ]
    for left, right in zip(cells[::2], cells[1::2], strict=True):
        lines.append(left + Text("  ") + right)
    return lines


def _load_text(model: ModelStatus, memory: MemoryStatus) -> str:
    """What a load would take and do."""
    if model.why_not:
        return f". A load is impossible: {printable(model.why_not)}"
    if memory.ceiling_bytes is None or not model.bytes:
        return ""
    left = max(0, memory.ceiling_bytes - memory.loaded_bytes)
    text = f". It needs {show_bytes(model.bytes)}, {show_bytes(left)} are free for models"
    return f"{text}: {_joined(model.evicts)} would have to go" if model.evicts else text


def _joined(names: Sequence[str]) -> str:
    return " and ".join(printable(name) for name in names)


def _curve(snapshot: Snapshot, name: str, label: str, model: str | None, width: int, glyphs: Glyphs) -> Text:
    """`tok/s   62.2 ▁▂▃ max 80.1`."""
    scale = _SCALES.get(name, 1.0)
    values = [None if v is None else v * scale for v in snapshot.curves.values(name, model)]
    known = [value for value in values if value is not None]
    last = next((value for value in reversed(values[-3:]) if value is not None), None)
    before = f"{label:<7} {_short(last):>5} "
    after = f" max {_short(max(known)) if known else '-':<5}"
    spark = sparkline(values, width - len(before) - len(after), glyphs)
    line = Text.assemble((before, "bold"), (spark, "cyan"), (after, "dim"))
    line.pad_right(max(0, width - line.cell_len))
    return line


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 or not value else f"{value:.2f}"


def _panel(snapshot: Snapshot, chosen: Selection, width: int, height: int, glyphs: Glyphs) -> list[Text]:
    if height <= 0:
        return []
    if chosen.shows_help:
        return [_rule("keys", width), *(Text(line) for line in HELP)]
    name, legend = chosen.model, ""
    if chosen.panel == "log":
        title, lines = f"log of {name}", log_lines(snapshot, name)
        end = max(0, len(lines) - chosen.scroll)
        shown = lines[max(0, end - height + 1) : end]
    elif chosen.panel == "requests":
        title = _requests_title(chosen)
        legend = bar_legend(glyphs)
        lines = request_lines(snapshot, width, glyphs)
        shown = lines[:1] + lines[1 + chosen.scroll : chosen.scroll + height - 1]
    else:
        title, lines = f"who waits: {snapshot.state.waiting}", queue_lines(snapshot)
        shown = lines[chosen.scroll : chosen.scroll + height - 1]
    return [_rule(f"curves {chosen.range_name} -- {title}", width, legend), *shown]


def _requests_title(chosen: Selection) -> str:
    parts = ["requests"]
    parts += [f"of {chosen.model}"] if chosen.is_one_model else []
    parts += [f"from {chosen.slower_s:.0f} s on"] if chosen.slower_s else []
    day = {0: [], 1: ["until yesterday"]}.get(chosen.days_back, [f"until {chosen.days_back} days ago"])
    return " ".join([*parts, *day])


def _rule(title: str, width: int, legend: str = "") -> Text:
    """The legend stands at the end, if there is room for it."""
    line = f"-- {printable(title)} "
    if not legend or len(line) + len(legend) + 3 > width:
        return Text(line.ljust(width, "-"), "dim")
    return Text(f"{line.ljust(width - len(legend) - 1, '-')} {legend}", "dim")


def _foot(chosen: Selection, width: int, glyphs: Glyphs) -> list[Text]:
    if chosen.message:
        return _wrapped(Text(printable(chosen.message), "bold yellow"), width)[:3]
    keys = KEYS if glyphs is UNICODE else KEYS.replace("↑↓", "j k")
    return [Text(keys, "dim")]


def _wrapped(text: Text, width: int) -> list[Text]:
    """At blanks; a word that is longer than a line is cut."""
    words, lines, line = text.split(" "), [], Text()
    for word in words:
        if line and line.cell_len + 1 + word.cell_len > width:
            lines.append(line)
            line = Text()
        line = line + Text(" ") + word if line else word
    return [*lines, line]


def _fitted(lines: Sequence[Text], width: int, height: int) -> list[Text]:
    fitted = [line.copy() for line in lines[:height]]
    for line in fitted:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return fitted + [Text()] * (height - len(fitted))


def load_question(model: ModelStatus, state_memory_bytes: int | None, loaded_bytes: int) -> str:
    """What a load would do, asked before it is done; empty: nothing has to be asked."""
    need = f"{_gib(model.needed_bytes or model.bytes or None)} GiB"
    if model.evicts:
        return f"load {model.name}? It needs {need}; {_joined(model.evicts)} would be unloaded first. y/n"
    free = None if state_memory_bytes is None else state_memory_bytes - loaded_bytes
    if model.evicts is None and free is not None and (model.bytes or 0) > free:
        return (
            f"load {model.name}? It needs {need}, and {_gib(max(0, free))} GiB are left for models: "
            "idle models would be unloaded first. y/n"
        )
    return ""


# --- bars and curves ---


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs = UNICODE) -> str:
    """The last values, the highest of each group where there are more than fit; a space: not known."""
    if not values or width <= 0:
        return ""
    groups = _groups(values, width)
    top = max((value for value in groups if value is not None), default=0.0)
    return "".join(_level(value, top, glyphs) for value in groups).rjust(width)


def _groups(values: Sequence[float | None], width: int) -> list[float | None]:
    """Groups of one size, counted from the end: the newest value is always the last character."""
    size = -(-len(values) // width)
    ends = range(len(values), 0, -size)
    return [
        max((value for value in values[max(0, end - size) : end] if value is not None), default=None)
        for end in reversed(ends)
    ]


def _level(value: float | None, top: float, glyphs: Glyphs) -> str:
    if value is None:
        return " "
    if top <= 0 or value <= 0:
        return glyphs.levels[0]
    highest = len(glyphs.levels) - 1
    return glyphs.levels[max(1, min(highest, round(value / top * highest)))]


class BarPart(Value):
    name: str
    bytes: int
    fill: str
    style: str


def memory_parts(
    memory: MemoryStatus, models: Sequence[ModelStatus], glyphs: Glyphs = UNICODE
) -> list[BarPart]:
    """What holds the machine's memory: its models, everything else, and what is free."""
    loaded = [model for model in models if model.is_held and model.bytes]
    parts = [
        BarPart(
            model.name,
            model.bytes,
            glyphs.fills[index % len(glyphs.fills)],
            COLOURS[index % len(COLOURS)] if model.phase == "ready" else "dim",
        )
        for index, model in enumerate(loaded)
    ]
    if memory.total_bytes is None or memory.available_bytes is None:
        return parts
    used = memory.total_bytes - memory.available_bytes
    other = max(0, used - sum(part.bytes for part in parts))
    free = max(0, memory.total_bytes - other - sum(part.bytes for part in parts))
    return [
        *parts,
        BarPart("other", other, glyphs.other, "bright_black"),
        BarPart("free", free, glyphs.free, "bright_black"),
    ]


def memory_bar(
    memory: MemoryStatus, models: Sequence[ModelStatus], width: int, glyphs: Glyphs = UNICODE
) -> Text:
    """One bar; a line stands where the guard stops an engine."""
    parts = memory_parts(memory, models, glyphs)
    total = memory.total_bytes or sum(part.bytes for part in parts)
    bar = Text()
    if total <= 0 or width <= 0:
        return bar
    done = 0
    for part in parts:
        done += part.bytes
        cells = min(width, round(done / total * width)) - len(bar)
        bar.append(part.fill * max(0, cells), part.style)
    bar.append(glyphs.free * max(0, width - len(bar)), "bright_black")
    if memory.floor_bytes:
        at = max(0, min(width - 1, width - 1 - round(memory.floor_bytes / total * width)))
        bar = bar[:at] + Text(glyphs.limit, "bold red") + bar[at + 1 :]
    return bar


# --- what stands below the models ---


_PARTS = ("wait", "prompt", "answer", "both in one piece")
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
        return [Text("no request waits", "dim")]
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
    fills = (*glyphs.fills, glyphs.whole)
    return " ".join(f"{fill} {part}" for fill, part in zip(fills, _PARTS, strict=True))


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
    for row in rows:
        lines.append(_request(row, snapshot.at, columns, width - len(head), glyphs))
        said = wrap(printable(row.cache), max(20, width - 13))
        lines += [Text(f"{'':<13}{part}", "yellow") for part in said]
    return lines


class _RequestColumns(Value):
    model: int
    key: int
    """0: no request had a key."""


def _request(
    row: LoggedRequest, now: float, columns: _RequestColumns, bar_width: int, glyphs: Glyphs
) -> Text:
    is_split = row.is_stream and row.first_s is not None
    first = _seconds((row.first_s or 0.0) - row.waited_s) if is_split else "-"
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
    first_s = total if row.first_s is None else row.first_s
    fills = [*zip(glyphs.fills, _STYLES, strict=True), (glyphs.whole, "blue")]
    # An answer in one piece does not show when its prompt was read.
    ends = ((row.waited_s, 0), (first_s, 1), (total, 2)) if row.is_stream else ((row.waited_s, 0), (total, 3))
    for end_s, part in ends:
        fill, style = fills[part]
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
