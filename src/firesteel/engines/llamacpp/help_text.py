"""The output of `llama-server --help` -> its Schema.

For an image with a build that is not known from its sources: a fork, or a newer build. llama.cpp prints every
option with its spellings, its hint and its help text in columns:

    -c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
                                            (env: LLAMA_ARG_CTX_SIZE)

The help does not show which values are refused, so any value is accepted; the sources show more, and are
preferred where they are known. Seen in b11549.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firesteel.engines.llamacpp.learn import ENGINE, checked_schema
from firesteel.engines.schema.self_check import layout_changed
from firesteel.engines.schema.symbols import Flag, Schema, SymbolValue

_COLUMN = 40
"""Where help texts start; longer spellings have a line of their own."""
_SPELLING = re.compile(r"(-{1,2}[A-Za-z0-9][\w.-]*)(,?)\s*")


def learn(version: str, text: str) -> Schema:
    """Raises FiresteelError, naming what is missing, rather than give half a schema."""
    if not re.search(r"^-{1,2}\w", text, re.MULTILINE):
        raise layout_changed(ENGINE, "a list of options in `llama-server --help`", version)
    flags = {flag.name: flag for head, about in _options(text) for flag in _flag(head, about)}
    return checked_schema(version, flags)


def spellings(text: str) -> tuple[tuple[str, ...], ...]:
    """Every way to write each flag: `-c`, `--ctx-size`, `--no-mmap`."""
    return tuple(_spellings(head)[0] for head, about in _options(text) if "has been removed" not in about)


def _options(text: str) -> Iterator[tuple[str, str]]:
    """The spellings and hint of each option, and its help text in one line."""
    head, about = "", [""]
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            if head:
                yield head, " ".join(about)
            # The first spelling is padded to seven columns, so a gap only counts after them.
            start, gap, rest = _cut(line)
            head, about = start, [rest] if gap else []
        elif head and line.startswith(" " * _COLUMN):
            about.append(line.strip())
    if head:
        yield head, " ".join(about)


def _cut(line: str) -> tuple[str, bool, str]:
    match = re.search(r"\s{3,}", line[7:])
    if match is None:
        return line.strip(), False, ""
    return line[: 7 + match.start()].strip(), True, line[7 + match.end() :].strip()


def _flag(head: str, about: str) -> Iterator[Flag]:
    """One flag, or none for an option that was removed."""
    names, hint = _spellings(head)
    if not names or "argument has been removed" in about:
        return
    positives, negatives = (names, ()) if hint else _split_negatives(names)
    first = next((name for name in positives if name.startswith("--")), positives[0])
    yield Flag(
        first.lstrip("-"),
        SymbolValue("str" if hint else "bool", _values(hint, about)),
        "nothing" if not hint else "many" if re.fullmatch(r"\w+ \w+", hint) else "value",
        tuple(name for name in positives if name != first),
        negatives,
        tuple(re.findall(r"\(env: (\w+)\)", about)),
        "DEPRECATED" in about,
    )


def _spellings(head: str) -> tuple[tuple[str, ...], str]:
    names: list[str] = []
    position = 0
    while match := _SPELLING.match(head, position):
        names.append(match[1])
        position = match.end()
        if not match[2]:
            break
    return tuple(names), head[position:].strip()


def _split_negatives(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A switch prints its own spellings, then those that negate it, with nothing between: the second list
    begins at `--no-x`, or at the short spelling before it."""
    first = next((index for index, name in enumerate(names) if name.startswith("--no-") and index), None)
    if first is None:
        return names, ()
    is_short = not names[first - 1].startswith("--") and any(
        name.startswith("--") for name in names[: first - 1]
    )
    first -= is_short
    return names[:first], names[first:]


def _values(hint: str, about: str) -> tuple[str, ...]:
    """The names that the hint or the text lists: `[on|off|auto]`, `{none,layer}`, `allowed values: a, b`."""
    listed = re.fullmatch(r"[\[{<]([\w.+-]+(?:[|,][\w.+-]+)+)[\]}>]", hint)
    allowed = re.search(r"allowed values: ([\w.+-]+(?:, [\w.+-]+)*)", about)
    values = re.split(r"[|,]", listed[1]) if listed else allowed[1].split(", ") if allowed else []
    return tuple(sorted(values))
