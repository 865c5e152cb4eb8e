"""Why an engine did not start, from its own log.

Every line is held against what is known (`data/logs`). What looks bad and is not is folded away. What only
follows from another failure is never the answer: vLLM's `Engine core initialization failed` names nothing. Of
what is left, a line that says itself why comes before one that may have another behind it, and the earlier
before the later.

Bounded: lines are cut, texts that decide are plain, and a hundred megabytes stream through.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from firesteel.engines.logs.data import (
    CauseRow,
    Confidence,
    Kind,
    NoiseRow,
    cause_rows,
    engine_rows,
    noise_rows,
)
from firesteel.engines.logs.lines import numbered_lines, strip_prefix
from firesteel.engines.logs.progress import StartProgress, find_version, start_progress
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName

State = Literal["failed", "healthy", "unfinished"]
"""healthy: it listened, and nothing failed after. unfinished: neither, so far."""
_BLOCK_LINES = 500
_RANKS: dict[Kind, int] = {"root": 0, "trouble": 1, "follows": 2, "note": 3}
_EXCEPTION = re.compile(r"(?:[a-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Failed|NotFound)\b(?::|$)")
_SMELLS = re.compile(r"rror|RROR|xception|Failed|NotFound| E ")
_ERROR = re.compile(r"\berror\b|^\S{0,20} E (?:srv|cmn|llama)", re.IGNORECASE)
_TRACE = re.compile(r"Traceback \(most|\s|\^|\d+ +0x|#\d|During handling|The above exception|$")


@dataclass(frozen=True, slots=True)
class Cause:
    """A line that is known, and what it means."""

    id: str
    kind: Kind
    says: str
    next: str | None
    is_host: bool
    """The machine lacks something; no change to the launch would help."""
    line: int
    """Where it stands first."""
    text: str
    """The line's own words, without who said it when."""
    count: int
    confidence: Confidence
    sources: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """What looks bad and is not, and how often."""

    id: str
    says: str
    line: int
    count: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    engine: EngineName | None
    version: str | None
    state: State
    causes: tuple[Cause, ...]
    """Roots and troubles, the likeliest first."""
    follows: tuple[Cause, ...]
    notes: tuple[Cause, ...]
    folded: tuple[Folded, ...]
    reached: StartProgress | None
    """The last that the engine said of its way."""
    suspect: tuple[int, str] | None
    """The first error of a kind that is not known: its line and its words."""
    lines: int

    @property
    def cause(self) -> Cause | None:
        return self.causes[0] if self.causes else None


def diagnose(text: str | Iterable[str], engine: EngineName | None = None) -> Diagnosis:
    """A whole log, or pieces of it as they are read."""
    parts = (text,) if isinstance(text, str) else text
    seen = _LogScan()
    rows: tuple[NoiseRow | CauseRow, ...] = (*noise_rows(), *cause_rows())
    for block in _blocks(numbered_lines(parts)):
        joined = "\n".join(line for _, line in block)
        there = [row for row in rows if any(sign in joined for sign in row.sign)]
        engines = _engines_marked_in(joined, engine)
        seen.recognise(joined, block)
        for number, line in block:
            seen.look(number, line, there, engines)
    return seen.diagnosis(engine)


def _blocks(lines: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    while block := list(islice(lines, _BLOCK_LINES)):
        yield block


def _engines_marked_in(text: str, engine: EngineName | None) -> tuple[EngineName, ...]:
    """Whose marks are worth looking for in this text."""
    return tuple(
        name
        for name, row in engine_rows().items()
        if engine in (None, name) and any(sign in text for each in row.marks for sign in each.sign)
    )


@dataclass(slots=True)
class _LogScan:
    """What was met on the way through the log."""

    votes: Counter[EngineName] = field(default_factory=Counter)
    versions: dict[EngineName, str] = field(default_factory=dict)
    hits: dict[str, tuple[CauseRow, Cause]] = field(default_factory=dict)
    last_failure: int = 0
    noise: dict[str, Folded] = field(default_factory=dict)
    reached: dict[EngineName, tuple[int, StartProgress]] = field(default_factory=dict)
    listened: dict[EngineName, int] = field(default_factory=dict)
    suspect: tuple[int, str] | None = None
    said_error: tuple[int, str] | None = None
    folding: bool = False
    """A harmless line was met whose traceback, if one follows, is harmless too."""
    in_trace: bool = False
    lines: int = 0

    def look(
        self, number: int, line: str, rows: list[NoiseRow | CauseRow], engines: tuple[EngineName, ...]
    ) -> None:
        self.lines = number
        for engine in engines:
            self._advance(engine, number, line)
        if self._fold(number, line, rows):
            return
        known = [row for row in rows if isinstance(row, CauseRow) and self._hit(row, number, line)]
        if not known:
            self._suspect(number, line)

    def recognise(self, joined: str, block: list[tuple[int, str]]) -> None:
        """Whose lines these are, and of which release."""
        for name, row in engine_rows().items():
            self.votes[name] += sum(joined.count(sign) for sign in row.known_by)
            signs = (sign for each in row.version for sign in each.sign)
            if name not in self.versions and any(sign in joined for sign in signs):
                version = next((told for _, line in block if (told := find_version(row, line))), None)
                self.versions |= {name: version} if version else {}

    def _advance(self, engine: EngineName, number: int, line: str) -> None:
        found = start_progress(engine, line)
        if found:
            self.reached[engine] = (number, found)
            if found.stage == "listening":
                self.listened[engine] = number

    def _fold(self, number: int, line: str, rows: list[NoiseRow | CauseRow]) -> bool:
        """Whether this is harmless; the traceback after some such lines is harmless too."""
        for row in rows:
            if isinstance(row, NoiseRow) and row.read(line):
                known = self.noise.get(row.id) or Folded(row.id, row.says, number, 0)
                self.noise[row.id] = replace(known, count=known.count + 1)
                self.folding, self.in_trace = row.trace, False
                return True
        return self.folding and self._goes_on(strip_prefix(line))

    def _goes_on(self, said: str) -> bool:
        """Whether this is still that traceback; an exception is its last line, and only after `Traceback`."""
        if self.in_trace and _EXCEPTION.match(said):
            self.folding = False
            return True
        self.in_trace = self.in_trace or said.startswith("Traceback")
        self.folding = bool(_TRACE.match(said))
        return self.folding

    def _hit(self, row: CauseRow, number: int, line: str) -> bool:
        found = row.read(line)
        if not found:
            return False
        if row.kind != "note":
            self.last_failure = number
        if row.id in self.hits:
            first = self.hits[row.id][1]
            self.hits[row.id] = (row, replace(first, count=first.count + 1))
        else:
            self.hits[row.id] = (row, _cause(row, number, line, found))
        return True

    def _suspect(self, number: int, line: str) -> None:
        if not _SMELLS.search(line):
            return
        said = strip_prefix(line)
        if _EXCEPTION.match(said):
            self.suspect = self.suspect or (number, said)
        elif _ERROR.search(line):
            self.said_error = (number, said)

    def diagnosis(self, engine: EngineName | None) -> Diagnosis:
        engine = engine or next((name for name, count in self.votes.most_common(1) if count), None)
        version = self.versions.get(engine) if engine else None
        known = sorted(self._in_scope(engine, version), key=lambda each: (_RANKS[each.kind], each.line))
        causes = tuple(each for each in known if each.kind in ("root", "trouble"))
        reached = self.reached.get(engine) if engine else None
        suspect = self.suspect or self.said_error
        listened = self.listened.get(engine, 0) if engine else 0
        return Diagnosis(
            engine,
            version,
            self._state(listened, any(each.kind != "note" for each in known)),
            causes,
            tuple(each for each in known if each.kind == "follows"),
            tuple(each for each in known if each.kind == "note"),
            tuple(self.noise.values()),
            reached[1] if reached else None,
            suspect,
            self.lines,
        )

    def _in_scope(self, engine: EngineName | None, version: str | None) -> Iterator[Cause]:
        """One line, one answer: the first of the rows that are about this engine and release."""
        answered: set[int] = set()
        for row in cause_rows():
            if row.id not in self.hits or not row.is_of(version):
                continue
            if row.engines and engine and engine not in row.engines:
                continue
            cause = self.hits[row.id][1]
            if cause.line not in answered:
                answered.add(cause.line)
                yield cause

    def _state(self, listened: int, failed: bool) -> State:
        if listened and self.last_failure <= listened:
            return "healthy"
        if listened:
            return "failed" if failed else "healthy"
        return "failed" if failed or self.suspect or self.said_error else "unfinished"


def _cause(row: CauseRow, number: int, line: str, found: re.Match[str]) -> Cause:
    captured = {name: value or "?" for name, value in found.groupdict().items()}
    return Cause(
        row.id,
        row.kind,
        row.says.format_map(captured),
        row.next.format_map(captured) if row.next else None,
        row.host,
        number,
        strip_prefix(line),
        1,
        row.confidence,
        row.sources,
    )
