"""A log of any length and content as clean lines, in bounded time and memory.

The carriage return of a progress bar ends a line too. Colours and cursor movements are removed
whole: `printable` would leave their letters, which no pattern expects. Long lines are cut at their end:
engines print whole configs in one line, and a line is recognized by its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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
