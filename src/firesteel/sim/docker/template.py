"""The part of Go's templates that docker's `--format` is used with here: fields, `json` and `index`."""

from __future__ import annotations

import json
import re
from typing import Any

_ACTION = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_FIELD = re.compile(r"\.(\w+(?:\.\w+)*)?")
_LABEL = re.compile(r"\.Label \"([^\"]+)\"")
_INDEX = re.compile(r"index \.([\w.]+) (?:\"([^\"]+)\"|(\d+))")


class UnknownAction(ValueError):
    """An action that is not among them."""


def render(template: str, about: dict[str, Any]) -> str:
    text = template.replace("\\t", "\t").replace("\\n", "\n").removeprefix("table ")
    return _ACTION.sub(lambda match: _action(match[1], about), text)


def _action(action: str, about: dict[str, Any]) -> str:
    if action.startswith("json "):
        return json.dumps(_field(action.removeprefix("json ").strip(), about))
    if label := _LABEL.fullmatch(action):
        return str(about.get("Label", {}).get(label[1], ""))
    if index := _INDEX.fullmatch(action):
        held = _field(f".{index[1]}", about)
        key = index[2] if index[2] is not None else int(index[3])
        try:
            return _text(held[key])
        except (KeyError, IndexError, TypeError):
            return "<no value>"
    return _text(_field(action, about))


def _field(path: str, about: dict[str, Any]) -> Any:
    match = _FIELD.fullmatch(path)
    if match is None:
        raise UnknownAction(path)
    held: Any = about
    for name in (match[1] or "").split(".") if match[1] else ():
        if not isinstance(held, dict) or name not in held:
            raise UnknownAction(path)
        held = held[name]
    return held


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
