"""What `$NAME` stands for, where the same text says so.

A script that sets a name once, to plain text, means that text wherever it writes `$NAME`. A name that is
set twice, added to or computed stays as it is: which value holds is known only where the script runs.
`${NAME:-default}` is read as its default when the text does not set NAME.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from firesteel.reads.shell import NOWHERE, ShellCommand, Word
from firesteel.reads.source_text import Passage, SourceFile, joined

MAX_EXPANDED = 2**16
"""Characters that one word may grow to."""
MAX_NESTED = 4
"""Values that hold variables themselves, so deep."""
_NAME = r"[A-Za-z_]\w*"
_USE = re.compile(
    rf"\$(?:(?P<bare>{_NAME})|\{{(?P<braced>{_NAME}|\d)(?:\[[@*]\])?(?::?-(?P<default>[^{{}}]*))?\}})"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
"""Names whose value nobody needs to see in a finding."""
_COMPUTED = re.compile(r"\$\(|`")
_SETS = re.compile(rf"({_NAME})(\+?=)")

Values = Mapping[str, tuple[Word, ...]]
"""A name -> the words that it stands for: one for plain text, any number for an array."""


def values(lines: Sequence[ShellCommand]) -> Values:
    """The names that are set exactly once, to something that can be read here."""
    found: dict[str, tuple[Word, ...]] = {}
    spoilt: set[str] = set()
    for name, words in _assignments(lines):
        if name in found or words is None or any(_COMPUTED.search(word.text) for word in words):
            spoilt.add(name)
        found[name] = words or ()
    return told({name: words for name, words in found.items() if name not in spoilt})


def told(known: Values) -> Values:
    """Those that may be told: no secrets."""
    return {name: words for name, words in known.items() if not _SECRET.search(name)}


def _assignments(lines: Sequence[ShellCommand]) -> Iterator[tuple[str, tuple[Word, ...] | None]]:
    for index, line in enumerate(lines):
        if not line.words and line.env:
            *plain, last = line.env.items()
            yield from ((name, (word,)) for name, word in plain)
            is_array = line.end == "(" and not last[1].text
            yield last[0], tuple(_array(lines[index + 1 :])) if is_array else (last[1],)
        elif not line.words:
            continue
        elif line.texts[0] in ("export", "local", "readonly", "declare", "typeset"):
            for word in line.words[1:]:
                name, equals, _ = word.text.partition("=")
                if equals:
                    yield name, (word.after(len(name) + 1),)
        elif (added := _SETS.match(line.texts[0])) and added[2] == "+=":
            yield added[1], None
        elif line.texts[0] in ("for", "read", "select") and len(line.words) > 1:
            yield line.texts[1], None


def _array(lines: Iterable[ShellCommand]) -> Iterator[Word]:
    """The words up to the closing bracket; assignments among them are words too, and end it unread."""
    for line in lines:
        yield from line.words
        if line.end == ")":
            return


def expand(line: ShellCommand, known: Values, page: SourceFile) -> ShellCommand:
    """The line with the values of its variables, each standing where the value was written."""
    if not any("$" in word.text for word in (*line.words, *line.env.values())):
        return line
    words = tuple(new for word in line.words for new in _expanded(word, known, page))
    env = {name: _filled(word, known) for name, word in line.env.items()}
    return replace(line, words=words, env=env)


def _expanded(word: Word, known: Values, page: SourceFile) -> Iterator[Word]:
    """An array gives its words; text without quotes is split at its blanks."""
    use = _USE.fullmatch(word.text)
    array = known.get(use["braced"] or "") if use and "[" in word.text else None
    if array is not None:
        yield from (replace(each, span=NOWHERE) for each in array)
        return
    filled = _filled(word, known)
    if filled is word or word.is_quoted:
        yield filled
        return
    for part in re.finditer(r"\S+", filled.text):
        inside = filled.inside.part(part.start(), part.end())
        line, column = page.place(inside.at(0))
        yield replace(filled, text=inside.text, inside=inside, line=line, column=column)


def _filled(word: Word, known: Values, depth: int = 0) -> Word:
    pieces: list[Passage] = []
    at = 0
    for use in _USE.finditer(word.text):
        value = _value(use, word, known)
        if value is not None:
            pieces += [word.inside.part(at, use.start()), value]
            at = use.end()
    if not pieces:
        return word
    inside = joined([*pieces, word.inside.part(at, len(word.text))])
    if len(inside.text) > MAX_EXPANDED:
        return word
    filled = replace(word, text=inside.text, inside=inside, span=NOWHERE)
    return _filled(filled, known, depth + 1) if depth < MAX_NESTED else filled


def _value(use: re.Match[str], word: Word, known: Values) -> Passage | None:
    words = known.get(use["bare"] or use["braced"])
    if words is not None:
        return words[0].inside if len(words) == 1 and "[" not in use[0] else None
    return word.inside.part(*use.span("default")) if use["default"] is not None else None
