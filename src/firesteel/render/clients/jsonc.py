"""JSON with comments, read with the place of everything in it, so that one value can be changed alone.

Editors and agents let people write `//`, `/* */` and trailing commas into their settings; a plain JSON reader
refuses them and a plain writer throws them away.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from firesteel.errors import UsageError
from firesteel.render.clients.settings import SettingEdit

MAX_DEPTH = 100
_BLANK = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_PLAIN = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(slots=True)
class _Node:
    start: int
    end: int
    value: Any
    members: dict[str, _Node] = field(default_factory=dict)
    """Of an object."""
    content_end: int = 0
    """Of an object: where its last member ends, a comma after it included; its brace when it has none."""
    has_comma: bool = False


def read(text: str, path: str) -> dict[str, Any]:
    value: dict[str, Any] = _document(text, path).value
    return value


def write(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def edit(text: str, change: SettingEdit, path: str) -> str:
    """The text with one value set; all else as it was."""
    node, depth = _document(text, path), 1
    names = list(change.path)
    while len(names) > 1 and names[0] in node.members:
        node, depth = node.members[names.pop(0)], depth + 1
    value = change.value
    for name in reversed(names[1:]):
        value = {name: value}
    if names[0] in node.members:
        old = node.members[names[0]]
        return text[: old.start] + _dumped(value, depth) + text[old.end :]
    return _inserted(
        text, node, f"{json.dumps(names[0], ensure_ascii=False)}: {_dumped(value, depth)}", depth
    )


def _inserted(text: str, node: _Node, member: str, depth: int) -> str:
    """At the end of an object, behind the comments that stand there."""
    brace = node.end - 1
    last = len(text[:brace].rstrip())
    comma = "," if node.members and not node.has_comma else ""
    head = text[: node.content_end] + comma + text[node.content_end : max(last, node.content_end)]
    return f"{head}\n{'  ' * depth}{member}\n{'  ' * (depth - 1)}{text[brace:]}"


def _dumped(value: object, depth: int) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + "  " * depth)


def _document(text: str, path: str) -> _Node:
    reader = _Reader(text, path)
    node = reader.value(reader.blank(0), 0)
    if reader.blank(node.end) != len(text):
        raise reader.mistake(node.end, "nothing more was expected")
    if not isinstance(node.value, dict):
        raise reader.mistake(node.start, "an object was expected")
    return node


class _Reader:
    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path

    def mistake(self, at: int, what: str) -> UsageError:
        line = self.text.count("\n", 0, at) + 1
        return UsageError(
            f"{self.path}:{line}: {what}; it was left alone",
            next="correct it, or leave out --write and paste",
        )

    def blank(self, at: int) -> int:
        match = _BLANK.match(self.text, at)
        return match.end() if match else at

    def value(self, at: int, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            raise self.mistake(at, f"more than {MAX_DEPTH} levels")
        start = self.text[at : at + 1]
        if start == "{":
            return self._object(at, depth)
        if start == "[":
            return self._array(at, depth)
        match = _STRING.match(self.text, at) or _PLAIN.match(self.text, at)
        if match is None:
            raise self.mistake(at, "this is no JSON value")
        return _Node(at, match.end(), json.loads(match[0]))

    def _object(self, start: int, depth: int) -> _Node:
        node = _Node(start, start, {}, content_end=start + 1)
        at = self.blank(start + 1)
        while self.text[at : at + 1] != "}":
            if node.members and not node.has_comma:
                raise self.mistake(at, "a comma is missing")
            key = _STRING.match(self.text, at)
            colon = self.blank(key.end()) if key else at
            if key is None or self.text[colon : colon + 1] != ":":
                raise self.mistake(at, "a name and a colon were expected")
            name = json.loads(key[0])
            if name in node.members:
                raise self.mistake(at, f"`{name}` stands here twice")
            member = self.value(self.blank(colon + 1), depth + 1)
            node.members[name], node.value[name] = member, member.value
            at, node.content_end, node.has_comma = self._after(member.end)
        node.end = at + 1
        return node

    def _array(self, start: int, depth: int) -> _Node:
        items: list[Any] = []
        at, has_comma = self.blank(start + 1), True
        while self.text[at : at + 1] != "]":
            if not has_comma:
                raise self.mistake(at, "a comma is missing")
            item = self.value(at, depth + 1)
            items.append(item.value)
            at, _, has_comma = self._after(item.end)
        return _Node(start, at + 1, items)

    def _after(self, end: int) -> tuple[int, int, bool]:
        """Behind a member: where the next thing begins, where this one ends, and whether a comma came."""
        at = self.blank(end)
        if self.text[at : at + 1] != ",":
            return at, end, False
        return self.blank(at + 1), at + 1, True
