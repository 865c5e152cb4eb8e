"""A log, however long and however odd, as lines that can be looked at in bounded time and memory.

A progress bar's carriage return ends a line too. Colours and cursor movements go; of a line that is too long
the end is lost: engines print whole configs in one, and are known by how they begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_LINE = 4000
"""Longer than any line that is matched."""
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
    """Pieces of text, cut anywhere -> lines, each with the number that an editor gives it."""
    number, rest = 1, ""
    for part in parts:
        *whole, rest = (rest + part).split("\n")
        for line in whole:
            yield from ((number, clean_line(each)) for each in line.split("\r") if each)
            number += 1
        if len(rest) > 2 * MAX_LINE:
            *bars, rest = rest.split("\r")  # a progress bar may run for hours without a line's end
            yield from ((number, clean_line(each)) for each in bars if each)
            rest = rest[:MAX_LINE]
    yield from ((number, clean_line(each)) for each in rest.split("\r") if each)


def clean_line(line: str) -> str:
    return _ESCAPES.sub("", line[: 2 * MAX_LINE])[:MAX_LINE].rstrip()


def strip_prefix(line: str) -> str:
    """What was said, without who said it when."""
    found = _PREFIX.match(line)
    return line[found.end() :] if found else line
