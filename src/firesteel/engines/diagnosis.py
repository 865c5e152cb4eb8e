"""Why an engine did not start, from its own log.

Every line is compared with the known ones (`data/logs`). Harmless lines that look like errors are counted and
set aside. A line that only follows from another failure is never the answer: vLLM's `Engine core
initialization failed` names no cause. Of the others, a line that names the cause comes before one that may
have another cause behind it, and the earlier before the later.

Bounded: lines are cut, plain text is searched before any pattern is tried, and a log of a hundred megabytes
is read as a stream.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Literal

from msgspec import Struct, field

from firesteel.engines.logs import (
    CauseRow,
    Confidence,
    Kind,
    NoiseRow,
    StartProgress,
    cause_rows,
    engine_rows,
    find_version,
    noise_rows,
    numbered_lines,
    start_progress,
    strip_prefix,
)
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName, Runtime
from firesteel.values import Value, replace

State = Literal["failed", "healthy", "unfinished"]
"""healthy: it listened, and nothing failed after. unfinished: neither yet."""
_BLOCK_LINES = 500
_MAX_PHASES = 200
_RANKS: dict[Kind, int] = {"root": 0, "trouble": 1, "follows": 2, "note": 3}
_EXCEPTION = re.compile(
    r"(?:[a-z_]\w{0,60}\.){0,6}(?:[A-Z]\w{0,60}(?:Error|Exception|Failed|NotFound)|Exception)\b(?::|$)"
)
_MAYBE_ERROR = re.compile(r"rror|RROR|xception|Failed|NotFound| E ")
"""A cheap test before the two that decide."""
_ERROR = re.compile(r"\berror\b|^\S{0,20} E (?:srv|cmn|llama)", re.IGNORECASE)
_PROCESS = re.compile(r"\([\w ]{1,80}pid=\d+\) |\S{1,80} +\| ")
_AFTER_MESSAGE = re.compile(r"Traceback \(most|During handling|The above exception|INFO|WARN|ERROR|\[\d{4}-")
_MAX_MESSAGE, _MAX_MESSAGE_LINES = 600, 12
_RUNTIMES: tuple[tuple[Runtime, re.Pattern[str]], ...] = (
    ("container", re.compile(r"/dist-packages/|/sgl-workspace/|^/app/", re.MULTILINE)),
    ("native", re.compile(r'File "/(?:home|srv|Users)/|/llama\.cpp/(?:ggml|src|build)/')),
)
"""Folders in tracebacks: images use the system's Python, and people environments of their own."""
_TRACE = re.compile(r"Traceback \(most|\s|\^|\d+ +0x|#\d|During handling|The above exception|$")


class Cause(Value):
    """A known line, and what it means."""

    id: str
    kind: Kind
    says: str
    next: str | None
    is_host: bool
    """The host is the problem; no change to the launch would help."""
    line: int
    """The number of the first such line."""
    text: str
    """The message of that line, without time and process; of an exception, all that it says."""
    count: int
    confidence: Confidence
    sources: tuple[Evidence, ...]


class Folded(Value):
    """A harmless line that looks like an error, and how often it appears."""

    id: str
    says: str
    line: int
    count: int


class PhaseMark(Value):
    """A line with which a stage of the start begins."""

    line: int
    stage: str
    says: str
    text: str
    """The message of that line, without time and process."""


class Diagnosis(Value):
    engine: EngineName | None
    version: str | None
    state: State
    causes: tuple[Cause, ...]
    """Of the kinds root and trouble, the likeliest first."""
    follows: tuple[Cause, ...]
    notes: tuple[Cause, ...]
    folded: tuple[Folded, ...]
    reached: StartProgress | None
    """The last progress that the engine reported."""
    suspect: tuple[int, str] | None
    """The first error that is not known: its line number and its text."""
    lines: int
    phases: tuple[PhaseMark, ...] = ()
    """The stages of the start in the order of the log; of several starts, all."""

    @property
    def cause(self) -> Cause | None:
        return self.causes[0] if self.causes else None


def diagnose(
    text: str | Iterable[str], engine: EngineName | None = None, runtime: Runtime | None = None
) -> Diagnosis:
    """A whole log, or pieces of it as they are read. What is not given is read from the log."""
    lines = numbered_lines((text,) if isinstance(text, str) else text)
    scan = _LogScan(engine, runtime)
    # In blocks: one search for plain text in 500 lines at once is much cheaper than 500 searches.
    while block := list(islice(lines, _BLOCK_LINES)):
        scan.read_block(block)
    return scan.diagnosis()


class _LogScan(Struct):
    """What was found so far on the way through a log."""

    engine: EngineName | None
    runtime: Runtime | None
    votes: Counter[EngineName] = field(default_factory=Counter)
    versions: dict[EngineName, str] = {}
    causes: dict[str, tuple[Cause, dict[str, str]]] = {}
    """With what the pattern captured: the advice depends on the engine, which may be known later."""
    last_failure: int = 0
    noise: dict[str, Folded] = {}
    reached: dict[EngineName, StartProgress] = {}
    phases: dict[EngineName, list[PhaseMark]] = {}
    listened: dict[EngineName, int] = {}
    unknown_exception: tuple[int, str] | None = None
    unknown_error: tuple[int, str] | None = None
    known_elsewhere: tuple[int, str] | None = None
    """The first exception that only rows for some engines or releases know; they may not apply here."""
    skips_trace: bool = False
    """A harmless line was found whose traceback, if one follows, is harmless too."""
    in_trace: bool = False
    lines: int = 0
    earlier: dict[str, str] = {}
    """The `after` of rows -> the last line that has this text."""
    messages: dict[int, str] = {}
    """The number of a line with an exception -> its whole message, which may go on in the next lines."""
    open_message: tuple[int, str] | None = None
    """The line whose message may go on, and the process that printed it."""
    message_lines: int = 0

    def read_block(self, block: list[tuple[int, str]]) -> None:
        text = "\n".join(line for _, line in block)
        for name, row in engine_rows().items():
            self.votes[name] += sum(text.count(sign) for sign in row.known_by)
            if name not in self.versions and any(pattern.is_in(text) for pattern in row.version):
                version = next((version for _, line in block if (version := find_version(row, line))), None)
                self.versions |= {name: version} if version else {}
        if self.runtime is None:
            self.runtime = next((name for name, sign in _RUNTIMES if sign.search(text)), None)
        noise = [known for known in noise_rows() if known.is_in(text)]
        causes = [cause for cause in cause_rows() if cause.is_in(text)]
        engines = [
            name
            for name, row in engine_rows().items()
            if self.engine in (None, name) and any(mark.is_in(text) for mark in row.marks)
        ]
        contexts = {row.after for row in cause_rows() if row.after and row.after in text}
        for number, line in block:
            is_after_blank, self.lines = number > self.lines + 1, number
            for engine in engines:
                self._record_progress(engine, number, line)
            self.earlier |= {context: line for context in contexts if context in line}
            if self._is_harmless(number, line, noise):
                continue
            self._continue_message(number, line, is_after_blank)
            # Every row is tried: which of them applies is decided when engine and version are known.
            matches = [cause for cause in causes if self._record_cause(cause, number, line)]
            if not matches:
                self._record_unknown_error(number, line)
            elif all(cause.engines or cause.versions for cause in matches):
                message = strip_prefix(line)
                if self.known_elsewhere is None and _EXCEPTION.match(message):
                    self.known_elsewhere = (number, message)

    def _record_progress(self, engine: EngineName, number: int, line: str) -> None:
        progress = start_progress(engine, line)
        if progress:
            phases, before = self.phases.setdefault(engine, []), self.reached.get(engine)
            if (before is None or before.stage != progress.stage) and len(phases) < _MAX_PHASES:
                phases.append(PhaseMark(number, progress.stage, str(progress), strip_prefix(line)))
            self.reached[engine] = progress
            if progress.stage == "listening":
                self.listened[engine] = number

    def _is_harmless(self, number: int, line: str, rows: list[NoiseRow]) -> bool:
        for row in rows:
            if row.match(line):
                known = self.noise.get(row.id) or Folded(row.id, row.says, number, 0)
                self.noise[row.id] = replace(known, count=known.count + 1)
                self.skips_trace, self.in_trace = row.trace, False
                return True
        return self.skips_trace and self._continues_trace(strip_prefix(line))

    def _continues_trace(self, message: str) -> bool:
        """Whether this is still the traceback of a harmless line; an exception after `Traceback` ends it."""
        if self.in_trace and _EXCEPTION.match(message):
            self.skips_trace = False
            return True
        self.in_trace = self.in_trace or message.startswith("Traceback")
        self.skips_trace = bool(_TRACE.match(message))
        return self.skips_trace

    def _continue_message(self, number: int, line: str, is_after_blank: bool) -> None:
        """Python prints what an exception says as it is, also over several lines."""
        message = strip_prefix(line)
        process = _PROCESS.match(line)
        printed_by = process[0] if process else ""
        if _MAYBE_ERROR.search(line) and _EXCEPTION.match(message):
            self.open_message, self.messages[number], self.message_lines = (number, printed_by), message, 0
        elif self.open_message:
            first, by = self.open_message
            text, self.message_lines = self.messages[first], self.message_lines + 1
            has_begun = not text.rstrip().endswith(":")
            is_too_long = self.message_lines > _MAX_MESSAGE_LINES or len(text) >= _MAX_MESSAGE
            is_after = _AFTER_MESSAGE.match(message) or by != printed_by
            if is_too_long or is_after or (has_begun and (is_after_blank or not message.strip())):
                self.open_message = None
            elif message.strip():
                self.messages[first] = f"{text.rstrip()} {message.strip()}"[:_MAX_MESSAGE]

    def _record_cause(self, row: CauseRow, number: int, line: str) -> bool:
        if not row.is_in(line) or (row.after and row.after not in self.earlier):
            return False
        match = row.match(f"{self.earlier[row.after]}\n{line}" if row.after else line)
        if not match:
            return False
        if row.kind != "note":
            self.last_failure = number
        if known := self.causes.get(row.id):
            self.causes[row.id] = replace(known[0], count=known[0].count + 1), known[1]
        else:
            captured = {name: value or "?" for name, value in match.groupdict().items()}
            self.causes[row.id] = _cause(row, number, line, captured), captured
        return True

    def _record_unknown_error(self, number: int, line: str) -> None:
        if not _MAYBE_ERROR.search(line):
            return
        message = strip_prefix(line)
        if _EXCEPTION.match(message):
            self.unknown_exception = self.unknown_exception or (number, message)
        elif _ERROR.search(line):
            self.unknown_error = (number, message)

    def diagnosis(self) -> Diagnosis:
        engine = self.engine or next((name for name, count in self.votes.most_common(1) if count), None)
        version = self.versions.get(engine) if engine else None
        causes = sorted(self._causes_of(engine, version), key=lambda cause: (_RANKS[cause.kind], cause.line))
        suspect = self.unknown_exception or self.unknown_error
        if not causes and self.known_elsewhere:
            suspect = min(self.known_elsewhere, self.unknown_exception or self.known_elsewhere)
        if suspect:
            suspect = (suspect[0], self.messages.get(suspect[0], suspect[1]))
        if silent := self._ended_without_a_word(causes, has_suspect=suspect is not None):
            causes.insert(0, silent)
        failed = any(cause.kind != "note" for cause in causes)
        state: State = "failed" if failed or suspect else "unfinished"
        if engine and (listened := self.listened.get(engine, 0)):
            state = "failed" if failed and self.last_failure > listened else "healthy"
        return Diagnosis(
            engine,
            version,
            state,
            tuple(cause for cause in causes if cause.kind in ("root", "trouble")),
            tuple(cause for cause in causes if cause.kind == "follows"),
            tuple(cause for cause in causes if cause.kind == "note"),
            tuple(self.noise.values()),
            self.reached.get(engine) if engine else None,
            suspect,
            self.lines,
            tuple(self.phases.get(engine, ())) if engine else (),
        )

    def _ended_without_a_word(self, causes: list[Cause], *, has_suspect: bool) -> Cause | None:
        """Only a consequence is in the log of a start: the process that failed could not write why."""
        follows = next((cause for cause in causes if cause.id == "engine-core-failed"), None)
        if follows is None or has_suspect or not self.reached:
            return None
        if any(cause.kind in ("root", "trouble") for cause in causes):
            return None
        return replace(
            follows,
            id="engine-killed",
            kind="trouble",
            says="the engine's own process ended without a word: it was killed, often for lack of memory",
            next="sudo dmesg | grep -iE 'killed process|nv_err' | tail; firesteel plan for what fits",
            is_host=True,
        )

    def _causes_of(self, engine: EngineName | None, version: str | None) -> Iterable[Cause]:
        """One answer for each line: the first of the rows for this engine and release."""
        explained: set[int] = set()
        found: list[tuple[CauseRow, Cause]] = []
        for row in cause_rows():
            cause, captured = self.causes.get(row.id, (None, {}))
            applies = row.applies_to(version) and (not row.engines or not engine or engine in row.engines)
            if cause and applies and cause.line not in explained:
                explained.add(cause.line)
                advice = row.advice(engine, self.runtime)
                named = {**captured, "engine": engine or "ENGINE"}
                text = self.messages.get(cause.line, cause.text)
                found.append((row, replace(cause, text=text, next=advice and advice.format_map(named))))
        for row, cause in found:
            # A wrapper that is a root itself (`no such model`) gives way only to a root that wraps nothing.
            gives_way = row.wraps and any(
                other.kind == "root" and not (other.wraps and row.kind == "root") for other, _ in found
            )
            yield replace(cause, kind="follows") if gives_way else cause


def _cause(row: CauseRow, number: int, line: str, captured: Mapping[str, str]) -> Cause:
    return Cause(
        row.id,
        row.kind,
        row.says.format_map(captured),
        None,
        row.host,
        number,
        strip_prefix(line),
        1,
        row.confidence,
        row.sources,
    )
