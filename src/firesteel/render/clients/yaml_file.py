"""YAML, changed by lines: an item put first into a list, or in place of the one of its name.

Scalars are compared as the text that they are; aliases, tags and keys that stand twice are refused, as in
firesteel's own files.
"""

from __future__ import annotations

from typing import Any

import yaml

from firesteel import yaml_schema
from firesteel.errors import UsageError
from firesteel.render import yaml_text
from firesteel.render.clients.settings import SettingEdit


def read(text: str, path: str) -> dict[str, Any]:
    value, _ = yaml_schema.read(path, text)
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no keys; it was left alone", next="leave out --write and paste")
    return value


def as_read(value: object) -> object:
    """Every scalar as its text."""
    return read(write({"value": value}), "value")["value"]


def write(value: dict[str, Any]) -> str:
    return yaml_text.document(value)


def edit(text: str, change: SettingEdit, path: str) -> str:
    """The text with one value set; all else as it was."""
    lines = text.split("\n")
    if change.how != "list":
        return "\n".join([yaml_text.document({change.path[-1]: change.value}).rstrip("\n"), *lines])
    listed = _value(text, change.path[-1])
    if listed is None:
        if change.path[-1] in read(text, path):
            return text  # an empty key: whoever reads it again sees that nothing changed
        whole = yaml_text.document({change.path[-1]: [change.value]})
        return text.rstrip("\n") + "\n" + whole
    if listed.flow_style or not isinstance(listed, yaml.SequenceNode):
        return text  # whoever reads it again sees that nothing changed
    indent = listed.start_mark.column
    item = yaml_text.sequence([change.value], indent)
    start, end = _old(listed, change.value)
    if start is None:
        first = listed.start_mark.line
        return "\n".join([*lines[:first], *item, *lines[first:]])
    return "\n".join([*lines[:start], *item, *lines[end:]])


def _value(text: str, key: str) -> Any:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key and not _is_null(value)), None)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")


def _old(listed: yaml.SequenceNode, item: Any) -> tuple[int | None, int]:
    """The lines of the item with the same name."""
    for node in listed.value:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        if any(name.value == "name" and value.value == item["name"] for name, value in pairs):
            return node.start_mark.line, _last_line(node) + 1
    return None, 0


def _last_line(node: yaml.Node) -> int:
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _last_line(last[-1] if isinstance(last, tuple) else last)
    end = node.end_mark
    return int(end.line) - (1 if end.column == 0 and end.line > node.start_mark.line else 0)
