"""YAML, edited line by line: an item is put first into a list, or replaces the one with its name.

ruamel.yaml 0.19 is not used because it reformats the rest of the file: indents of lists, blanks in them.
Scalars are compared as text; aliases, tags and duplicate keys are refused, as in firesteel's own files.
"""

from __future__ import annotations

from typing import Any

import yaml

from firesteel import yaml_reader
from firesteel.errors import UsageError
from firesteel.render import yaml_text
from firesteel.render.clients.settings import SettingEdit


def read(text: str, path: str) -> dict[str, Any]:
    value, _ = yaml_reader.read(path, text)
    if not isinstance(value, dict):
        raise UsageError(f"{path} has no keys; it was left alone", next="leave out --write and paste")
    return value


def as_read(value: object) -> object:
    """The value with every scalar as its text."""
    return read(write({"value": value}), "value")["value"]


def write(value: dict[str, Any]) -> str:
    return yaml_text.document(value)


def edit(text: str, change: SettingEdit, path: str) -> str:
    """The text with one value changed and everything else as it was. Where it cannot be changed the text is
    returned as it is, which `merge` detects."""
    lines = text.split("\n")
    if change.action != "list":
        return "\n".join([yaml_text.document({change.path[-1]: change.value}).rstrip("\n"), *lines])
    node = _value(text, change.path[-1])
    if node is None and change.path[-1] in read(text, path):
        return text  # a key without a value
    if node is None:
        return text.rstrip("\n") + "\n" + yaml_text.document({change.path[-1]: [change.value]})
    if node.flow_style or not isinstance(node, yaml.SequenceNode):
        return text
    item = yaml_text.sequence([change.value], node.start_mark.column)
    assert isinstance(change.value, dict)
    start, end = _item_lines(node, change.value["name"])
    return "\n".join([*lines[:start], *item, *lines[end:]])


def _value(text: str, key: str) -> Any:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key and not _is_null(value)), None)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")


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
