"""Settings of a client -> the text of its file: a new file, or an existing one with the settings in it.

A user's file is changed only where it must be: comments, order and everything else stay. Each format (JSON
with comments, TOML, YAML) is edited as text, and the result is parsed again and compared with what it should
be; if the two differ, the file is left alone. A file that cannot be parsed is not touched either. Nothing
here reads or writes a file itself.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import yaml
from msgspec import Struct

from firesteel import yaml_reader
from firesteel.errors import UsageError
from firesteel.render import yaml_text
from firesteel.render.clients import ClientSettings, Format, SettingEdit
from firesteel.values import Value, replace

MAX_CHARACTERS = 2**20


class _Editor(Value):
    """Parse and edit one format."""

    read: Callable[[str, str], dict[str, Any]]
    edit: Callable[[str, SettingEdit, str], str]
    as_read: Callable[[object], object] = lambda value: value
    """A value as `read` would return it."""


def render_settings(settings: ClientSettings, form: Format) -> str:
    """All settings, for a new file or for pasting."""
    value: dict[str, Any] = {}
    for edit in settings.edits:
        value = apply_edit(value, edit)
    if form == "env":
        return "".join(f"export {name}={_shell_quoted(str(setting))}\n" for name, setting in value.items())
    return _WRITERS[form](value)


def _shell_quoted(text: str) -> str:
    return f'"{text}"' if text.startswith("$") else shlex.quote(text)


def merge_settings(text: str, settings: ClientSettings, form: Format, path: str) -> str:
    """The user's file with the settings in it."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{path} is longer than {MAX_CHARACTERS:,} characters", next="firesteel client NAME")
    if not text.strip():
        return render_settings(settings, form)
    editor = _EDITORS[form]
    for edit in settings.edits:
        before = editor.read(text, path)
        wanted = apply_edit(before, replace(edit, value=editor.as_read(edit.value)), path)
        if wanted == before:
            continue
        text = editor.edit(text, edit, path)
        if not _is_equal(editor, text, path, wanted):
            raise UsageError(
                f"`{'.'.join(edit.path)}` cannot be set in {path} without changing the rest of the file",
                next="leave out --write: it is printed, and you can add it by hand",
            )
    return text


def _is_equal(editor: _Editor, text: str, path: str, wanted: dict[str, Any]) -> bool:
    try:
        return editor.read(text, path) == wanted
    except UsageError:
        return False


def apply_edit(value: dict[str, Any], edit: SettingEdit, path: str = "a new file") -> dict[str, Any]:
    """A copy of the value, which `path` holds, with the edit applied."""
    value = deepcopy(value)
    *parents, last = edit.path
    inner = value
    for name in parents:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise _of_another_kind(name, "a section", path)
    if edit.action == "list":
        items = inner.get(last) or []
        if not isinstance(items, list):
            raise _of_another_kind(last, "a list", path)
        inner[last] = _with_item(items, edit.value)
    elif edit.action == "drop":
        inner.pop(last, None)
    elif edit.action == "set" or last not in inner:
        inner[last] = deepcopy(edit.value)
    return value


def _of_another_kind(name: str, wanted: str, path: str) -> UsageError:
    return UsageError(
        f"`{name}` in {path} is not {wanted}", next=f"correct it in {path}, or leave out --write"
    )


def _with_item(items: list[Any], item: Any) -> list[Any]:
    names = [other.get("name") if isinstance(other, dict) else None for other in items]
    if item["name"] in names:
        index = names.index(item["name"])
        return [*items[:index], item, *items[index + 1 :]]
    return [item, *items]


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


def read_jsonc(text: str, path: str) -> dict[str, Any]:
    value: dict[str, Any] = _document(text, path).value
    return value


def write_jsonc(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def edit_jsonc(text: str, change: SettingEdit, path: str) -> str:
    """The text with one value changed and everything else as it was.

    Editors and agents allow `//`, `/* */` and trailing commas in their settings; a plain JSON parser refuses
    them and a plain writer discards them. So every value is parsed with its position.
    """
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


_HEADER = re.compile(r"\s*\[")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z", re.ASCII)


def read_toml(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not TOML: {error}; it was left alone",
            next="correct it, or leave out --write and paste",
        ) from None


def write_toml(value: dict[str, Any]) -> str:
    return "\n".join(_toml_lines(value, ())).strip("\n") + "\n"


def _toml_lines(value: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {name: item for name, item in value.items() if not isinstance(item, dict)}
    lines = [
        *([_table_header(path)] if path and plain else []),
        *(_toml_pair(name, item) for name, item in plain.items()),
        *([""] if plain else []),
    ]
    for name, item in value.items():
        if isinstance(item, dict):
            lines += _toml_lines(item, (*path, name))
    return lines


def edit_toml(text: str, change: SettingEdit, path: str) -> str:
    """The text with one value changed and everything else as it was, line by line.

    Python's standard library reads TOML and does not write it. tomlkit 0.15 does, but inserts a new top-level
    key between the first table and that table's comment. Only what these settings need is written: strings,
    numbers and booleans at the top or in a `[table]`. A file with inline or dotted tables instead is detected
    when `merge_settings` parses the result.
    """
    lines = text.split("\n")
    *table, name = change.path
    start, end = _table_lines(lines, tuple(table))
    if start is None:
        return "\n".join(
            [text.rstrip("\n"), "", _table_header(tuple(table)), _toml_pair(name, change.value), ""]
        )
    key = re.compile(rf'\s*"?{re.escape(name)}"?\s*=')
    for index in range(start, end):
        if key.match(lines[index]):
            pair = [] if change.action == "drop" else [_toml_pair(name, change.value)]
            return "\n".join([*lines[:index], *pair, *lines[index + 1 :]])
    while end > start and lines[end - 1].strip()[:1] in ("", "#"):
        end -= 1  # a comment before the next table belongs to that table
    return "\n".join([*lines[:end], _toml_pair(name, change.value), *(lines[end:] or [""])])


def _table_lines(lines: list[str], path: tuple[str, ...]) -> tuple[int | None, int]:
    """Start and end of the lines of a table, without its header; None: there is no such table."""
    start: int | None = None if path else 0
    if path:
        parts = r"\s*\.\s*".join(f"[\"']?{re.escape(name)}[\"']?" for name in path)
        header = re.compile(rf"\s*\[\s*{parts}\s*\]\s*(#.*)?\Z")
        start = next((index + 1 for index, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        return None, len(lines)
    ends = (index for index in range(start, len(lines)) if _HEADER.match(lines[index]))
    return start, next(ends, len(lines))


def _table_header(path: tuple[str, ...]) -> str:
    return f"[{'.'.join(_toml_key(name) for name in path)}]"


def _toml_pair(name: str, value: object) -> str:
    return f"{_toml_key(name)} = {json.dumps(value, ensure_ascii=False)}"


def _toml_key(name: str) -> str:
    return name if _BARE.match(name) else json.dumps(name, ensure_ascii=False)


def read_yaml(text: str, path: str) -> dict[str, Any]:
    value, _ = yaml_reader.read(path, text)
    if not isinstance(value, dict):
        raise UsageError(f"{path} has no keys; it was left alone", next="leave out --write and paste")
    return value


def as_read(value: object) -> object:
    """The value with every scalar as its text."""
    return read_yaml(write_yaml({"value": value}), "value")["value"]


def write_yaml(value: dict[str, Any]) -> str:
    return yaml_text.document(value)


def edit_yaml(text: str, change: SettingEdit, path: str) -> str:
    """The text with one value changed and everything else as it was: an item is put first into a list, or
    replaces the one with its name. Where it cannot be changed the text is returned as it is, which
    `merge_settings` detects.

    ruamel.yaml 0.19 is not used because it reformats the rest of the file: indents of lists, blanks in them.
    Scalars are compared as text; aliases, tags and duplicate keys are refused, as in firesteel's own files.
    """
    lines = text.split("\n")
    if change.action != "list":
        return "\n".join([yaml_text.document({change.path[-1]: change.value}).rstrip("\n"), *lines])
    node = _node_of_key(text, change.path[-1])
    if node is None and change.path[-1] in read_yaml(text, path):
        return text  # a key without a value
    if node is None:
        return text.rstrip("\n") + "\n" + yaml_text.document({change.path[-1]: [change.value]})
    if node.flow_style or not isinstance(node, yaml.SequenceNode):
        return text
    item = yaml_text.sequence([change.value], node.start_mark.column)
    assert isinstance(change.value, dict)
    start, end = _item_lines(node, change.value["name"])
    return "\n".join([*lines[:start], *item, *lines[end:]])


def _node_of_key(text: str, key: str) -> Any:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    node = next((value for name, value in pairs if name.value == key), None)
    return None if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null") else node


def _item_lines(items: yaml.SequenceNode, item_name: str) -> tuple[int, int]:
    """The lines of the item with this name; an empty range at the start of the list if there is none."""
    for node in items.value:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        if any(name.value == "name" and value.value == item_name for name, value in pairs):
            return node.start_mark.line, _last_line(node) + 1
    return items.start_mark.line, items.start_mark.line


def _last_line(node: yaml.Node) -> int:
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _last_line(last[-1] if isinstance(last, tuple) else last)
    end = node.end_mark
    return int(end.line) - (1 if end.column == 0 and end.line > node.start_mark.line else 0)


_LIST = "models:\n"
"""A file that is a list is edited as the list under this key, which YAML does not indent."""


def _read_list(text: str, path: str) -> dict[str, Any]:
    return read_yaml(_LIST + text, path)


def _edit_list(text: str, change: SettingEdit, path: str) -> str:
    return edit_yaml(_LIST + text, change, path).removeprefix(_LIST)


def _write_list(value: dict[str, Any]) -> str:
    return "\n".join(yaml_text.sequence(value["models"], 0)) + "\n"


_WRITERS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "json": write_jsonc,
    "toml": write_toml,
    "yaml": write_yaml,
    "yaml-list": _write_list,
}
_EDITORS: Mapping[str, _Editor] = {
    "json": _Editor(read_jsonc, edit_jsonc),
    "toml": _Editor(read_toml, edit_toml),
    "yaml": _Editor(read_yaml, edit_yaml, as_read),
    "yaml-list": _Editor(_read_list, _edit_list, as_read),
}
