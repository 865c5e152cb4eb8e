"""The part of Go's templates that firesteel uses with docker's `--format`: fields, `json` and `index`."""

from __future__ import annotations

import json
import re
from typing import Any

_ACTION = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_FIELD = re.compile(r"\.(\w+(?:\.\w+)*)?")
_LABEL = re.compile(r"\.Label \"([^\"]+)\"")
_INDEX = re.compile(r"index \.([\w.]+) (?:\"([^\"]+)\"|(\d+))")


class UnknownAction(ValueError):
    """An action that is not supported here."""


def render(template: str, document: dict[str, Any]) -> str:
    text = template.replace("\\t", "\t").replace("\\n", "\n").removeprefix("table ")
    return _ACTION.sub(lambda match: _action(match[1], document), text)


def _action(action: str, document: dict[str, Any]) -> str:
    if action.startswith("json "):
        return json.dumps(_field(action.removeprefix("json ").strip(), document))
    if label := _LABEL.fullmatch(action):
        return str(document.get("Label", {}).get(label[1], ""))
    if index := _INDEX.fullmatch(action):
        container = _field(f".{index[1]}", document)
        key = index[2] if index[2] is not None else int(index[3])
        try:
            return _text(container[key])
        except (KeyError, IndexError, TypeError):
            return "<no value>"
    return _text(_field(action, document))


def _field(path: str, document: dict[str, Any]) -> Any:
    match = _FIELD.fullmatch(path)
    if match is None:
        raise UnknownAction(path)
    value: Any = document
    for name in match[1].split(".") if match[1] else ():
        if not isinstance(value, dict) or name not in value:
            raise UnknownAction(path)
        value = value[name]
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
