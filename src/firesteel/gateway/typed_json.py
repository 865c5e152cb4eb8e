"""Build values from JSON, checked against the types of dataclass fields.

For the loader's messages and for small files of our own. pydantic does the same and more, but the gateway's
process stays small without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_MAX_FILE_BYTES = 2**20


class InvalidJson(ValueError):
    """A JSON value that does not have the expected type."""


def parse(expected: type[T], value: object) -> T:
    """Unknown keys of an object are ignored: a newer release may have written them."""
    result: T = _convert(expected, value)
    return result


def parse_file(expected: type[T], path: Path) -> T | None:
    """None if the file is missing, unreadable or of another type."""
    try:
        with path.open("rb") as file:
            return parse(expected, json.loads(file.read(_MAX_FILE_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None


def _convert(expected: Any, value: object) -> Any:
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any or (origin is Literal and value in arguments) or type(value) is expected:
        return value
    if origin in (Union, UnionType):
        return _convert_optional(arguments, value)
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        return origin(_convert(arguments[0], item) for item in value)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _convert(arguments[1], item) for key, item in value.items()}
    if expected is float and type(value) is int:
        return value
    if isinstance(expected, type) and is_dataclass(expected) and isinstance(value, dict):
        required = {f.name for f in fields(expected) if f.default is MISSING and f.default_factory is MISSING}
        if missing := required - value.keys():
            raise InvalidJson(f"missing {', '.join(sorted(missing))}")
        types = _field_types(expected)
        return expected(**{name: _convert(types[name], value[name]) for name in types if name in value})
    raise InvalidJson(f"expected {_describe(expected)}, got {value!r:.100}")


def _describe(expected: Any) -> str:
    origin = get_origin(expected)
    if origin is Literal:
        return " or ".join(map(repr, get_args(expected)))
    if origin in (list, tuple):
        return "a list"
    return "an object" if origin or is_dataclass(expected) else str(expected.__name__)


def _convert_optional(types: tuple[Any, ...], value: object) -> Any:
    """`X | None` is the only union in use."""
    if value is None and NoneType in types:
        return None
    (expected,) = (kind for kind in types if kind is not NoneType)
    return _convert(expected, value)


@cache
def _field_types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
