"""Expands `$NAME` where the same text sets NAME, in commands and in here-documents.

A script that sets a name once, to plain text, means that text wherever it writes `$NAME`, with all that it
appends to it. A name that is set twice or computed is not expanded: its value is known only where the script
runs. `${NAME:-default}` expands to its default when the text does not set NAME.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from firesteel.reads.shell import NO_SPAN, ShellCommand, Word
from firesteel.reads.source_text import SourceFile, SourceText, join_texts
from firesteel.values import replace

MAX_EXPANDED = 2**16
"""Characters of one expanded word."""
MAX_NESTED = 4
"""How deep values may contain variables themselves."""
MAX_CHANGES = 200
"""How often a value may be extended."""
MAX_WORDS = 2000
"""Words of one array."""
_KEYWORDS = frozenset({"if", "then", "else", "elif", "fi", "do", "done", "{", "}", "!", "case", "esac", ";;"})
_NAME = r"[A-Za-z_]\w*"
USE = re.compile(
    rf"\$(?:(?P<bare>{_NAME})|\{{(?P<braced>{_NAME}|\d)(?:\[[@*]\])?(?::?-(?P<default>[^{{}}]*))?\}})"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
"""Variables whose value must not appear in a finding."""
_COMPUTED = re.compile(r"\$\(|`")
_SETS = re.compile(rf"({_NAME})(\+?=)")

V = TypeVar("V")
Values = Mapping[str, tuple[Word, ...]]
"""Names -> words: one for plain text, any number for an array."""


def is_variable(text: str) -> bool:
    """Nothing but a variable without a known value: `$EXTRA`, `"${ARGS[@]}"`."""
    return USE.fullmatch(text) is not None


def find_values(commands: Sequence[ShellCommand]) -> Values:
    """The variables that are set once to a value that is not computed, and after that only extended:
    `CMD="$CMD --flag"`, `ARGS+=(--flag)`."""
    values: dict[str, tuple[Word, ...]] = {}
    ambiguous: set[str] = set()
    counts: Counter[str] = Counter()
    for name, words, is_append, is_conditional in _assignments(commands):
        if words and is_conditional:
            words = tuple(replace(word, is_conditional=True) for word in words)
        before = values.get(name)
        counts[name] += 1
        if counts[name] > MAX_CHANGES:
            words = None
        elif words is not None and before is not None:
            words = (
                _joined(before, words)
                if is_append
                else (_substitute(words[0], {name: before}),)
                if len(before) == len(words) == 1 and _names(name, words[0])
                else None
            )
        if words is None or any(_COMPUTED.search(word.text) for word in words):
            ambiguous.add(name)
        values[name] = words or ()
    return without_secrets({name: words for name, words in values.items() if name not in ambiguous})


def _names(name: str, word: Word) -> bool:
    return any((use["bare"] or use["braced"]) == name for use in USE.finditer(word.text))


def _joined(before: tuple[Word, ...], added: tuple[Word, ...]) -> tuple[Word, ...] | None:
    """More words of an array, or more text of a value; None where it would be too long."""
    if len(before) != 1 or len(added) != 1 or before[0].is_element or added[0].is_element:
        return (*before, *added) if len(before) + len(added) <= MAX_WORDS else None
    content = join_texts((before[0].content, added[0].content))
    if len(content.text) > MAX_EXPANDED:
        return None
    return (replace(before[0], text=content.text, content=content, span=NO_SPAN),)


def without_secrets(known: Mapping[str, V]) -> Mapping[str, V]:
    return {name: value for name, value in known.items() if not _SECRET.search(name)}


def _assignments(
    commands: Sequence[ShellCommand],
) -> Iterator[tuple[str, tuple[Word, ...] | None, bool, bool]]:
    """Names and values, whether the value is appended, and whether under a condition; None where the command
    changes the variable in another way. What only another branch (`else`, `case`) appends is left out."""
    branches: list[str] = []
    arrays, outside = _arrays(commands), 0
    for index, command in enumerate(commands):
        if index < outside:
            continue
        outside = arrays.get(index, 0)
        array = _elements(commands[index + 1 : outside])
        words = _without_keywords(command, branches)
        is_conditional = bool(branches) or (index > 0 and commands[index - 1].end in ("&&", "||"))
        if not command.words and command.env:
            *plain, last = command.env.items()
            yield from ((name, (word,), False, is_conditional) for name, word in plain)
            yield last[0], array if outside else (last[1],), False, is_conditional
        elif not words:
            continue
        elif words[0].text in ("export", "local", "readonly", "declare", "typeset"):
            opened = _opened_array(command)
            for name, word in assigned(words[1:]).items():
                yield name, array if outside and name == opened else (word,), False, is_conditional
        elif sets := _SETS.match(words[0].text):
            is_append = sets[2] == "+="
            value = words[0].after(sets.end())
            if not is_append or branches[-1:] not in (["else"], ["case"]):
                yield sets[1], array if outside else (value,), is_append, is_conditional
        elif words[0].text in ("for", "read", "select") and len(words) > 1:
            yield words[1].text, None, False, is_conditional


def _without_keywords(command: ShellCommand, branches: list[str]) -> tuple[Word, ...]:
    """The words after `then`, `else` and the like; `branches` is updated to where the command stands."""
    for index, word in enumerate(command.words):
        if word.text in ("if", "case"):
            branches.append(word.text)
        elif word.text in ("else", "elif") and branches:
            branches[-1] = "else"
        elif word.text in ("fi", "esac") and branches:
            branches.pop()
        if word.text not in _KEYWORDS:
            return command.words[index:]
    return ()


def assigned(words: Iterable[Word]) -> dict[str, Word]:
    """`NAME=value` words as names and values."""
    pairs = ((word.text.partition("="), word) for word in words)
    return {name: word.after(len(name) + 1) for (name, equals, _), word in pairs if equals}


def without_arrays(commands: Sequence[ShellCommand], known: Values) -> Iterator[ShellCommand]:
    """The commands of a script. The lines of `CMD=( ... )` are no commands but words of one, which is read
    where the script uses `"${CMD[@]}"`, or here where its value is not known there."""
    arrays, outside = _arrays(commands), 0
    for index, command in enumerate(commands):
        if index < outside:
            continue
        yield command
        outside = arrays.get(index, 0)
        if outside and _opened_array(command) not in known:
            yield ShellCommand(_elements(commands[index + 1 : outside]))


def _arrays(commands: Sequence[ShellCommand]) -> dict[int, int]:
    """Where an array opens -> the command after its end. One that never ends is none."""
    ends = [index + 1 for index, command in enumerate(commands) if command.end == ")"]
    arrays: dict[int, int] = {}
    outside = 0
    for index, command in enumerate(commands if ends else ()):
        if index >= outside and _opened_array(command):
            following = bisect_left(ends, index + 2)
            if following < len(ends):
                arrays[index] = outside = ends[following]
    return arrays


def _opened_array(command: ShellCommand) -> str | None:
    """`NAME` of `NAME=(`, `NAME+=(`, `local NAME=(`."""
    if command.end != "(":
        return None
    if not command.words:
        return next((name for name in reversed([*command.env]) if not command.env[name].text), None)
    sets = _SETS.fullmatch(command.words[-1].text)
    return sets[1] if sets else None


def _elements(commands: Sequence[ShellCommand]) -> tuple[Word, ...]:
    """The words of an array."""
    words = (word for command in commands for word in command.words)
    return tuple(replace(word, is_element=True) for word in islice(words, MAX_WORDS))


def expand(command: ShellCommand, known: Values, file: SourceFile) -> ShellCommand:
    """The command with the values of its variables; a value has the position where it was written."""
    if not any("$" in word.text for word in (*command.words, *command.env.values())):
        return command
    words = tuple(new for word in command.words for new in _expand_word(word, known, file))
    env = {name: _substitute(word, known) for name, word in command.env.items()}
    return replace(command, words=words, env=env)


def _expand_word(word: Word, known: Values, file: SourceFile) -> Iterator[Word]:
    """An array gives its words; unquoted text is split at its blanks."""
    use = USE.fullmatch(word.text)
    array = known.get(use["braced"] or "") if use and "[" in word.text else None
    if array is not None:
        yield from (replace(element, span=NO_SPAN) for element in array)
        return
    expanded = _substitute(word, known)
    value = known.get(use["bare"] or use["braced"], ()) if use else ()
    if any(part.is_conditional for part in value):
        expanded = replace(expanded, is_conditional=True)
    if expanded.content is word.content or word.is_quoted:
        yield expanded
        return
    for part in re.finditer(r"\S+", expanded.text):
        content = expanded.content.part(part.start(), part.end())
        line, column = file.place(content.at(0))
        yield replace(expanded, text=content.text, content=content, line=line, column=column)


def _substitute(word: Word, known: Values, depth: int = 0) -> Word:
    content = word.content.substitute(USE, lambda use: _value(use, word, known), MAX_EXPANDED)
    if content is word.content or len(content.text) > MAX_EXPANDED:
        return word
    expanded = replace(word, text=content.text, content=content, span=NO_SPAN)
    return _substitute(expanded, known, depth + 1) if depth < MAX_NESTED else expanded


def _value(use: re.Match[str], word: Word, known: Values) -> SourceText | None:
    words = known.get(use["bare"] or use["braced"])
    if words is not None:
        return words[0].content if len(words) == 1 and "[" not in use[0] else None
    return word.content.part(*use.span("default")) if use["default"] is not None else None


_OPENING = re.compile(r"<<-?[^\S\n]*(['\"\\]?)(\w+)['\"]?[^\n]{0,1000}\n")
_ASSIGNMENT = re.compile(
    r"^[^\S\n]*(?:export[^\S\n]+)?([A-Za-z_]\w*)=([\"']?)([^\s\"'$`;&|()]*)\2[^\S\n]*$", re.MULTILINE
)
MAX_HEREDOCS = 100
MAX_HEREDOC = 2**16

Span = tuple[int, int]


def heredoc_bodies(source: SourceText) -> Iterator[tuple[SourceText, Span]]:
    """Every body without its common indent, and where it stands.

    `cat > vllm.service <<EOF ... EOF` holds a unit, a manifest, a compose file or a script. Values that the
    script sets are filled in unless the mark is quoted. A body that is a script itself needs nothing: its
    lines are read with those around them.
    """
    if "<<" not in source.text:
        return
    known = {match[1]: source.part(*match.span(3)) for match in _ASSIGNMENT.finditer(source.text)}
    known = dict(without_secrets(known))
    for opening in islice(_OPENING.finditer(source.text), MAX_HEREDOCS):
        closing = re.compile(rf"^[^\S\n]*{opening[2]}[^\S\n]*$", re.MULTILINE)
        end = closing.search(source.text, opening.end(), opening.end() + MAX_HEREDOC)
        if end is None:
            continue
        body = source.part(opening.end(), end.start())
        if not opening[1]:
            body = body.substitute(USE, lambda use: known.get(use["bare"] or use["braced"]), MAX_HEREDOC)
        yield body, (opening.end(), end.start())


def blank_out_heredoc(source: SourceText, span: Span) -> SourceText:
    start, end = span
    blank = re.sub(r"[^\n]", " ", source.text[start:end])
    return source.inner(source.text[:start] + blank + source.text[end:], ((0, 0),))
