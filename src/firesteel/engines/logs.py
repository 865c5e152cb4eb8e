"""Engine logs -> start-up progress and reported memory.

The log lines that firesteel knows are data, in `data/logs/*.yaml`. Never opens a log
file: callers pass text.

A line is recognized by a `sign`, plain text that must be in it, before any `pattern` is tried: plain text is
found fast in a hundred megabytes, and a pattern only ever sees lines that it was written for. Named groups of
a pattern can be used in the text that is shown.

A log of any length and content as clean lines, in bounded time and memory.

The carriage return of a progress bar ends a line too. Colours and cursor movements are removed
whole: `printable` would leave their letters, which no pattern expects. Long lines are cut at their end:
engines print whole configs in one line, and a line is recognized by its beginning.

What an engine reports in its log: memory by part, tokens of cache, concurrent requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from string import Formatter
from typing import Annotated, Literal

from msgspec import Meta
from packaging.version import InvalidVersion, Version

from firesteel import shipped_data
from firesteel.facts.evidence import Sources
from firesteel.launch import EngineName, Runtime
from firesteel.units import GIB, MIB, check_range, is_in_range
from firesteel.values import NOT_EMPTY, ExpandText, FileValue, Texts, Value, check_regex

Stage = Literal[
    "process", "forming", "download", "weights", "compile", "kv", "graphs", "warm", "listening",
]  # fmt: skip
"""The stages of a start; not every engine has all of them, and each has its own order."""
Kind = Literal["root", "trouble", "follows", "note"]
"""root: names the cause. trouble: a failure that may have another cause behind it. follows: always the result
of another failure. note: nothing failed, yet worth knowing."""
Confidence = Literal["verified", "reported", "claimed"]
"""verified: read in the source that prints it, or seen by us. reported: users or maintainers agree on the
meaning. claimed: one report."""


def _check_pattern(text: str) -> str:
    outside_classes = re.sub(r"\[(?:\\.|[^\]])+\]", "c", check_regex(text))
    if re.search(r"(?<!\\)(?:\.[*+]|\)[*+{])", outside_classes):
        raise ValueError("a pattern must limit how much it matches: `.{0,200}`, no `.*`, no repeated group")
    return text


Pattern = Annotated[str, ExpandText(_check_pattern)]
Range = Annotated[str, ExpandText(check_range)]


class LinePattern(FileValue, kw_only=True, dict=True):
    """How to recognize one kind of line."""

    sign: Texts
    """One of these texts is in the line."""
    pattern: Pattern | None = None
    versions: Range | None = None

    def match(self, line: str) -> re.Match[str] | None:
        return self.regex.search(line) if self.is_in(line) else None

    def is_in(self, text: str) -> bool:
        """Whether the text may hold such a line: a quick test before `match`."""
        return any(sign in text for sign in self.sign)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern or "|".join(re.escape(sign) for sign in self.sign))

    def applies_to(self, version: str | None) -> bool:
        """Whether a release prints the line; True where the release is not known."""
        if self.versions is None or version is None:
            return True
        try:
            return is_in_range(Version(version), self.versions)
        except InvalidVersion:
            return True


class MarkRow(LinePattern, kw_only=True):
    stage: Stage
    words: str
    unit: str | None = None
    """What `done` and `total` count."""


class EngineRow(FileValue, kw_only=True):
    engine: EngineName
    sources: Sources
    known_by: Texts
    version: tuple[LinePattern, ...]
    stages: tuple[Stage, ...]
    """In the order in which a start goes through them."""
    marks: tuple[MarkRow, ...]


class PhasesSchema(FileValue, kw_only=True):
    engines: tuple[EngineRow, ...]


class NoiseRow(LinePattern, kw_only=True):
    """A line that looks like an error and is harmless."""

    id: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$", max_length=1000)]
    says: str
    trace: bool = False
    """The traceback after it is harmless too."""
    sources: Sources
    hits: Annotated[tuple[str, ...], NOT_EMPTY]
    misses: tuple[str, ...] = ()


_Whose = Literal[
    "vllm", "sglang", "llamacpp", "native", "vllm native", "sglang native", "llamacpp native", "else"
]


class CauseRow(LinePattern, kw_only=True):
    id: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$", max_length=1000)]
    kind: Kind = "root"
    engines: tuple[EngineName, ...] = ()
    """Only in logs of these engines; empty: in any log."""
    after: str | None = None
    """An earlier line has this text; the pattern sees the last such line too, before a newline."""
    wraps: bool = False
    """Printed around another failure: with a root in the log, it only follows from that."""
    host: bool = False
    """The host is the problem; no change to the launch would help."""
    says: str
    """What the line means; may use the named groups of the pattern as {name}."""
    next: str | Annotated[dict[_Whose, str], NOT_EMPTY] | None = None
    """What to do, with the same placeholders and {engine}; a text for each engine or runtime where it depends
    on them."""
    confidence: Confidence
    sources: Sources
    hits: Annotated[tuple[str, ...], NOT_EMPTY]
    misses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        captured = set(self.regex.groupindex)
        texts = self.next.values() if isinstance(self.next, dict) else [self.next or ""]
        used = {name for text in (self.says, *texts) for _, name, _, _ in Formatter().parse(text)}
        if unknown := {name for name in used if name is not None} - captured - {"engine"}:
            raise ValueError(f"the pattern captures no `{min(unknown)}`")
        if self.next is None and self.kind in ("root", "trouble"):
            raise ValueError("needs a `next`: what to do about it")

    def advice(self, engine: EngineName | None, runtime: Runtime | None) -> str | None:
        """The most specific text; without any for this engine, the one for `else`."""
        if not isinstance(self.next, dict):
            return self.next
        texts = {str(whose): text for whose, text in self.next.items()}
        keys = [f"{engine} native", "native"] if runtime == "native" else []
        return next(texts[key] for key in (*keys, engine or "else", "else", *texts) if key in texts)


class CausesSchema(FileValue, kw_only=True):
    causes: tuple[CauseRow, ...]


class NoiseSchema(FileValue, kw_only=True):
    noise: tuple[NoiseRow, ...]


@cache
def engine_rows() -> dict[EngineName, EngineRow]:
    file = shipped_data.load("logs/phases.yaml", PhasesSchema)
    return {row.engine: row for row in file.engines}


@cache
def cause_rows() -> tuple[CauseRow, ...]:
    """Specific rows before general ones: of two that match a line, the first is the answer."""
    return shipped_data.load("logs/diagnoses.yaml", CausesSchema).causes


@cache
def noise_rows() -> tuple[NoiseRow, ...]:
    return shipped_data.load("logs/noise.yaml", NoiseSchema).noise


MAX_LINE = 4000
"""Characters; longer than any line that a pattern matches."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8} [\w.-]{1,80} [\w.@:-]{1,80}\[\d+\]: )?"  # journald
    r"(?:[\w.-]{1,80} +\| )?"  # docker compose: which container
    r"(?:\d{4}-\d\d-\d\dT[\d:.]{8,20}Z? )?"  # docker logs -t
    r"(?:\([\w ]{1,80}pid=\d+\) )*"  # vLLM: which process, Ray's before vLLM's
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.,]+ \[[^\]]{1,80}\] ?)?"
    r"(?:\[\d{4}-\d\d-\d\d [\d:.]+[^\]]{0,40}\] )?"  # SGLang: when, which rank
    r"(?:\d+\.\d\d\.\d{3}\.\d{3} [DIWE] )?"  # llama.cpp: since the start
)


def numbered_lines(parts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Pieces of text, cut anywhere -> lines with their numbers, as an editor counts them."""
    number, rest = 1, ""
    for part in parts:
        *complete, rest = (rest + part).split("\n")
        for line in complete:
            yield from ((number, clean_line(piece)) for piece in line.split("\r") if piece)
            number += 1
        if len(rest) > 2 * MAX_LINE:
            *bars, rest = rest.split("\r")  # a progress bar may run for hours without a line end
            yield from ((number, clean_line(bar)) for bar in bars if bar)
            rest = rest[:MAX_LINE]
    yield from ((number, clean_line(piece)) for piece in rest.split("\r") if piece)


def clean_line(line: str) -> str:
    """The line without escape sequences, at most MAX_LINE characters."""
    return _ESCAPES.sub("", line[: 2 * MAX_LINE])[:MAX_LINE].rstrip()


def strip_prefix(line: str) -> str:
    """The message of a line, without its time, process and level."""
    prefix = _PREFIX.match(line)
    return line[prefix.end() :] if prefix else line


_KV_GIB = (
    r"(?:Available KV cache memory: |reserved |(?:Explicitly|Auto) set \()"
    r"([\d.]+)(?: |/[\d.]+\) )GiB"  # on a CPU: (1.0/23.54) GiB
)


class ReportedMemory(Value):
    """As the engine itself reports it; None where it does not."""

    weights_bytes: int | None = None
    kv_bytes: int | None = None
    compute_bytes: int | None = None
    kv_tokens: int | None = None
    concurrency: float | None = None
    """Requests of full context length that the cache holds at once."""
    host_weights_bytes: int = 0
    """The part of the weights that llama.cpp keeps in host memory when there is a GPU."""


def reported_memory(engine: EngineName, text: str) -> ReportedMemory:
    if engine == "llamacpp":
        in_host = _sum(r"load_tensors: +CPU\S* model buffer size = +([\d.]+) MiB", text, MIB)
        cache = r"llama_(?:kv_cache|memory_recurrent): .* (?:KV|RS) buffer size = +([\d.]+) MiB"
        return ReportedMemory(
            _sum(r"load_tensors: .* model buffer size = +([\d.]+) MiB", text, MIB),
            _sum(cache, text, MIB),
            _sum(r"sched_reserve: .* compute buffer size = +([\d.]+) MiB", text, MIB),
            host_weights_bytes=in_host or 0,
        )
    if engine == "vllm":
        # Up to 0.29 one or two lines, with `GPU` before the size; since 0.30 with the name of the device.
        concurrency = _last_match(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", text)
        return ReportedMemory(
            _sum(r"Model loading took ([\d.]+) GiB", text, GIB),
            _sum(_KV_GIB, text, GIB),
            None,
            _last_count(r"KV cache size: ([\d,]+) tokens", text),
            float(concurrency) if concurrency else None,
        )
    # SGLang prints GB and divides by 2^30. Since 0.5.18 it may print an upper bound of the cache first; what
    # it allocated comes after the graphs.
    lines = [line for line in text.splitlines() if re.search(r"KV [Cc]ache (?:is )?allocated\.", line)]
    return ReportedMemory(
        _sum(r"Load weight end\..* mem usage=([\d.]+) GB", text, GIB),
        _sum(r"\b(?:K|V|KV) size: ([\d.]+) GB", "\n".join(lines), GIB),
        None,
        _last_count(r"max_total_num_tokens=(\d+)", text),
    )


def _sum(pattern: str, text: str, unit: int) -> int | None:
    sizes = re.findall(pattern, text)
    return round(sum(map(float, sizes)) * unit) if sizes else None


def _last_match(pattern: str, text: str) -> str | None:
    matches = re.findall(pattern, text)
    return matches[-1] if matches else None


def _last_count(pattern: str, text: str) -> int | None:
    number = _last_match(pattern, text)
    return int(number.replace(",", "")) if number else None


class StartProgress(Value):
    """What one line reports: the stage, and how much of it is done where the line counts."""

    stage: Stage
    words: str
    done: int | None = None
    total: int | None = None
    unit: str | None = None
    """What `done` and `total` count; None with a total: percent."""

    @property
    def share(self) -> float | None:
        """How much of the stage is done, 0 to 1."""
        if self.done is None or not self.total:
            return None
        return min(1.0, self.done / self.total)

    def __str__(self) -> str:
        if self.done is None or not self.total:
            return self.words
        return f"{self.words}, " + (
            f"{self.done} of {self.total} {self.unit}" if self.unit else f"{self.done} %"
        )


def start_progress(engine: EngineName, line: str, version: str | None = None) -> StartProgress | None:
    """What the engine is doing, if this line shows it; with `version`, only lines of this release."""
    for row in engine_rows()[engine].marks:
        match = row.match(line) if row.applies_to(version) else None
        if match:
            return _progress(row, match.groupdict())
    return None


def _progress(row: MarkRow, captured: dict[str, str | None]) -> StartProgress:
    if captured.get("percent"):
        return StartProgress(row.stage, row.words, int(captured["percent"] or 0), 100)
    done, total = captured.get("done"), captured.get("total")
    if done is None or total is None:
        return StartProgress(row.stage, row.words)
    return StartProgress(row.stage, row.words, int(done), int(total), row.unit)


def stages(engine: EngineName) -> tuple[Stage, ...]:
    """The stages of a start, in their order."""
    return engine_rows()[engine].stages


def find_version(row: EngineRow, line: str) -> str | None:
    """The version of the engine, if this line names it."""
    return next((match["version"] for pattern in row.version if (match := pattern.match(line))), None)
