"""Expands `$NAME` where the same text sets NAME.

A script that sets a name once, to plain text, means that text wherever it writes `$NAME`. A name that is set
twice, appended to or computed is not expanded: its value is known only where the script runs.
`${NAME:-default}` expands to its default when the text does not set NAME.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from firesteel.reads.shell import NO_SPAN, ShellCommand, Word
from firesteel.reads.source_text import SourceFile, SourceText

MAX_EXPANDED = 2**16
"""Characters of one expanded word."""
MAX_NESTED = 4
"""How deep values may contain variables themselves."""
_NAME = r"[A-Za-z_]\w*"
_USE = re.compile(
    rf"\$(?:(?P<bare>{_NAME})|\{{(?P<braced>{_NAME}|\d)(?:\[[@*]\])?(?::?-(?P<default>[^{{}}]*))?\}})"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
"""Variables whose value must not appear in a finding."""
_COMPUTED = re.compile(r"\$\(|`")
_SETS = re.compile(rf"({_NAME})(\+?=)")

Values = Mapping[str, tuple[Word, ...]]
"""Names -> words: one for plain text, any number for an array."""


def find_values(commands: Sequence[ShellCommand]) -> Values:
    """The variables that are set exactly once, to a value that is not computed."""
    values: dict[str, tuple[Word, ...]] = {}
    ambiguous: set[str] = set()
    for name, words in _assignments(commands):
        if name in values or words is None or any(_COMPUTED.search(word.text) for word in words):
            ambiguous.add(name)
        values[name] = words or ()
    return without_secrets({name: words for name, words in values.items() if name not in ambiguous})


def without_secrets(known: Values) -> Values:
    return {name: words for name, words in known.items() if not _SECRET.search(name)}


def _assignments(commands: Sequence[ShellCommand]) -> Iterator[tuple[str, tuple[Word, ...] | None]]:
    """Names and values; None where the command changes the variable in another way."""
    for index, command in enumerate(commands):
        if not command.words and command.env:
            *plain, last = command.env.items()
            yield from ((name, (word,)) for name, word in plain)
            is_array = command.end == "(" and not last[1].text
            yield last[0], tuple(_array(commands[index + 1 :])) if is_array else (last[1],)
        elif not command.words:
            continue
        elif command.texts[0] in ("export", "local", "readonly", "declare", "typeset"):
            yield from ((name, (word,)) for name, word in assigned(command.words[1:]).items())
        elif (append := _SETS.match(command.texts[0])) and append[2] == "+=":
            yield append[1], None
        elif command.texts[0] in ("for", "read", "select") and len(command.words) > 1:
            yield command.texts[1], None


def assigned(words: Iterable[Word]) -> dict[str, Word]:
    """`NAME=value` words as names and values."""
    pairs = ((word.text.partition("="), word) for word in words)
    return {name: word.after(len(name) + 1) for (name, equals, _), word in pairs if equals}


def _array(commands: Iterable[ShellCommand]) -> Iterator[Word]:
    """The words up to the closing parenthesis."""
    for command in commands:
        yield from command.words
        if command.end == ")":
            return


def expand(command: ShellCommand, known: Values, file: SourceFile) -> ShellCommand:
    """The command with the values of its variables; a value has the position where it was written."""
    if not any("$" in word.text for word in (*command.words, *command.env.values())):
        return command
    words = tuple(new for word in command.words for new in _expand_word(word, known, file))
    env = {name: _substitute(word, known) for name, word in command.env.items()}
    return replace(command, words=words, env=env)


def _expand_word(word: Word, known: Values, file: SourceFile) -> Iterator[Word]:
    """An array gives its words; unquoted text is split at its blanks."""
    use = _USE.fullmatch(word.text)
    array = known.get(use["braced"] or "") if use and "[" in word.text else None
    if array is not None:
        yield from (replace(element, span=NO_SPAN) for element in array)
        return
    expanded = _substitute(word, known)
    if expanded is word or word.is_quoted:
        yield expanded
        return
    for part in re.finditer(r"\S+", expanded.text):
        content = expanded.content.part(part.start(), part.end())
        line, column = file.place(content.at(0))
        yield replace(expanded, text=content.text, content=content, line=line, column=column)


def _substitute(word: Word, known: Values, depth: int = 0) -> Word:
    content = word.content.substitute(_USE, lambda use: _value(use, word, known), MAX_EXPANDED)
    if content is word.content or len(content.text) > MAX_EXPANDED:
        return word
    expanded = replace(word, text=content.text, content=content, span=NO_SPAN)
    return _substitute(expanded, known, depth + 1) if depth < MAX_NESTED else expanded


def _value(use: re.Match[str], word: Word, known: Values) -> SourceText | None:
    words = known.get(use["bare"] or use["braced"])
    if words is not None:
        return words[0].content if len(words) == 1 and "[" not in use[0] else None
    return word.content.part(*use.span("default")) if use["default"] is not None else None
