"""YAML files with strict schemas: every mistake named with its file and line.

Scalars stay text (`0.20` is not 0.2, `no` is not False) and the pydantic schema gives the types.
A plain `null` or an empty value is None. Duplicate keys, aliases (they can blow up), tags and files
past a megabyte are refused.
"""

from __future__ import annotations

from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from firesteel.errors import UsageError

MAX_BYTES = 2**20
MAX_DEPTH = 20
_NULLS = {"null", "~", ""}

T = TypeVar("T")
Path = tuple[str | int, ...]


class Sheet(BaseModel):
    """Base of every schema: frozen, and an unknown key is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BadSheet(UsageError):
    """A file that does not follow its schema; the message has a line for each mistake."""


def load(name: str, text: str, schema: type[T]) -> T:
    """The text of the file `name` -> a `schema`, or BadSheet with `name:line` for every mistake."""
    value, lines = read(name, text)
    try:
        return TypeAdapter(schema).validate_python(value)
    except ValidationError as error:
        mistakes = [
            f"{name}:{_line(lines, fault['loc'])}: {_where(fault['loc'])}{_say(fault)}"
            for fault in error.errors(include_url=False)
        ]
        raise BadSheet("\n".join(mistakes), next=f"correct {name}") from None


def read(name: str, text: str) -> tuple[Any, dict[Path, int]]:
    """Plain values (text, lists, dicts, None) and the line of each."""
    if len(text) > MAX_BYTES:
        raise BadSheet(f"{name}:1: longer than {MAX_BYTES:,} characters", next=f"shorten {name}")
    lines: dict[Path, int] = {(): 1}
    try:
        _refuse_tricks(name, text)
        node = yaml.compose(text, Loader=yaml.CBaseLoader)
    except yaml.MarkedYAMLError as error:
        raise _mistake(name, error.problem_mark or error.context_mark, error.problem or "not YAML") from None
    except yaml.YAMLError as error:
        raise BadSheet(f"{name}:1: not YAML: {str(error).splitlines()[0]}", next=f"correct {name}") from None
    return (None if node is None else _build(name, node, (), lines)), lines


def _refuse_tricks(name: str, text: str) -> None:
    """Before anything is built: aliases multiply, and deep nesting overflows the C stack."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _mistake(name, event.start_mark, "aliases (`*name`) are not allowed here")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _mistake(name, event.start_mark, f"nested deeper than {MAX_DEPTH} levels")


def _build(name: str, node: yaml.Node, path: Path, lines: dict[Path, int]) -> Any:
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return [_build(name, item, (*path, index), lines) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        built: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _mistake(name, key.start_mark, "a key must be plain text")
            if key.value in built:
                raise _mistake(name, key.start_mark, f"`{key.value}` is given twice")
            built[key.value] = _build(name, value, (*path, key.value), lines)
            lines[(*path, key.value)] = key.start_mark.line + 1
        return built
    assert isinstance(node, yaml.ScalarNode)
    return None if not node.style and node.value in _NULLS else node.value


def _mistake(name: str, mark: Any, what: str) -> BadSheet:
    line = mark.line + 1 if mark else 1
    return BadSheet(f"{name}:{line}: {what}", next=f"correct {name} at line {line}")


def _line(lines: dict[Path, int], path: Path) -> int:
    while path not in lines:
        path = path[:-1]
    return lines[path]


def _where(path: Path) -> str:
    return f"`{'.'.join(str(part) for part in path)}`: " if path else ""


def _say(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "no such key"
    if fault["type"] == "missing":
        return "is missing"
    given = f", got `{fault['input']}`" if isinstance(fault["input"], str) else ""
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{message}{given}"
