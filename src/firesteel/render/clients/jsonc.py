"""JSON with comments, parsed with the position of every value, so that a single value can be replaced.

Editors and agents allow `//`, `/* */` and trailing commas in their settings; a plain JSON parser refuses them
and a plain writer discards them.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from firesteel.errors import UsageError
from firesteel.render.clients.settings import SettingEdit

MAX_DEPTH = 100
_BLANK = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_PLAIN = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")


class _Node(Struct):
    start: int
    end: int
    value: Any
    members: dict[str, _Node] = {}
    """Of an object."""
    content_end: int = 0
    """Of an object: the end of its last member with the comma, or of its opening brace."""
    has_comma: bool = False


def read(text: str, path: str) -> dict[str, Any]:
    value: dict[str, Any] = _document(text, path).value
    return value


def write(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def edit(text: str, change: SettingEdit, path: str) -> str:
    """The text with one value changed and everything else as it was."""
    node, depth = _document(text, path), 1
    names = list(change.path)
    while len(names) > 1 and names[0] in node.members:
        node, depth = node.members[names.pop(0)], depth + 1
    value = change.value
    for name in reversed(names[1:]):
        value = {name: value}
    if names[0] in node.members:
        old = node.members[names[0]]
        return text[: old.start] + _dump(value, depth) + text[old.end :]
    return _insert(text, node, f"{json.dumps(names[0], ensure_ascii=False)}: {_dump(value, depth)}", depth)


def _insert(text: str, node: _Node, member: str, depth: int) -> str:
    """Insert a member at the end of an object, after its last comments."""
    brace = node.end - 1
    last = len(text[:brace].rstrip())
    comma = "," if node.members and not node.has_comma else ""
    head = text[: node.content_end] + comma + text[node.content_end : max(last, node.content_end)]
    return f"{head}\n{'  ' * depth}{member}\n{'  ' * (depth - 1)}{text[brace:]}"


def _dump(value: object, depth: int) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + "  " * depth)


def _document(text: str, path: str) -> _Node:
    parser = _Parser(text, path)
    node = parser.value(parser.skip_blank(0), 0)
    if parser.skip_blank(node.end) != len(text):
        raise parser.error(node.end, "nothing more was expected")
    if not isinstance(node.value, dict):
        raise parser.error(node.start, "an object was expected")
    return node


class _Parser:
    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path

    def error(self, offset: int, problem: str) -> UsageError:
        line = self.text.count("\n", 0, offset) + 1
        return UsageError(
            f"{self.path}:{line}: {problem}; the file was left alone",
            next="correct it, or leave out --write and paste",
        )

    def skip_blank(self, offset: int) -> int:
        match = _BLANK.match(self.text, offset)
        return match.end() if match else offset

    def value(self, offset: int, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            raise self.error(offset, f"more than {MAX_DEPTH} levels")
        start = self.text[offset : offset + 1]
        if start == "{":
            return self._object(offset, depth)
        if start == "[":
            return self._array(offset, depth)
        match = _STRING.match(self.text, offset) or _PLAIN.match(self.text, offset)
        if match is None:
            raise self.error(offset, "this is not a JSON value")
        return _Node(offset, match.end(), json.loads(match[0]))

    def _object(self, start: int, depth: int) -> _Node:
        node = _Node(start, start, {}, content_end=start + 1)
        offset = self.skip_blank(start + 1)
        while self.text[offset : offset + 1] != "}":
            if node.members and not node.has_comma:
                raise self.error(offset, "a comma is missing")
            key = _STRING.match(self.text, offset)
            colon = self.skip_blank(key.end()) if key else offset
            if key is None or self.text[colon : colon + 1] != ":":
                raise self.error(offset, "a name and a colon were expected")
            name = json.loads(key[0])
            if name in node.members:
                raise self.error(offset, f"`{name}` is here twice")
            member = self.value(self.skip_blank(colon + 1), depth + 1)
            node.members[name], node.value[name] = member, member.value
            offset, node.content_end, node.has_comma = self._after(member.end)
        node.end = offset + 1
        return node

    def _array(self, start: int, depth: int) -> _Node:
        items: list[Any] = []
        offset, has_comma = self.skip_blank(start + 1), True
        while self.text[offset : offset + 1] != "]":
            if not has_comma:
                raise self.error(offset, "a comma is missing")
            item = self.value(offset, depth + 1)
            items.append(item.value)
            offset, _, has_comma = self._after(item.end)
        return _Node(start, offset + 1, items)

    def _after(self, end: int) -> tuple[int, int, bool]:
        """After a member: the start of the next token, the end of this one, and whether there is a comma."""
        offset = self.skip_blank(end)
        if self.text[offset : offset + 1] != ",":
            return offset, end, False
        return self.skip_blank(offset + 1), offset + 1, True
