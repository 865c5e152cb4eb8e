"""JSON values -> frozen dataclasses, checked field by field. Pure.

Our own state files come back as the values that were written, or not at all: a file that was edited, cut
short or written by another release must not become a value with a wrong type in it. Pydantic does the same
and more, but costs a supervisor or a gateway 20 MB for as long as it lives; this handles the few types that
state files use.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class InvalidValue(ValueError):
    """The JSON value does not have the declared type; the message says where."""


def from_json(kind: type[T], value: object) -> T:
    """`value`, as `json.loads` gives it, as a `kind`: a dataclass, or a list or dict of such.

    Keys that it does not know, of a newer release, are ignored.
    """
    converted: T = _convert(kind, value, getattr(kind, "__name__", str(kind)))
    return converted


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _dataclass(kind: Any, value: object, where: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidValue(f"{where} is not an object: {value!r:.80}")
    hints, known = _hints(kind), {field.name: field for field in fields(kind) if field.init}
    converted = {}
    for name, field in known.items():
        if name in value:
            converted[name] = _convert(hints[name], value[name], f"{where}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InvalidValue(f"{where}.{name} is missing")
    return kind(**converted)


def _convert(kind: Any, value: object, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _first_that_fits(arguments, value, where)
    if origin is Literal:
        fits, converted = value in arguments, value
    elif origin in (tuple, list) or origin is Sequence:
        return _sequence(origin, arguments, value, where)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(arguments, value, where)
    elif kind is Any or kind is object:
        return value
    elif is_dataclass(kind):
        return _dataclass(kind, value, where)
    elif kind is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        converted = value
    elif kind is None or kind is type(None):
        fits, converted = value is None, None
    else:  # str, int, bool; a bool is an int to Python, and not to us
        fits, converted = isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), value
    if not fits:
        raise InvalidValue(f"{where} is {value!r:.80}")
    return converted


def _first_that_fits(kinds: tuple[Any, ...], value: object, where: str) -> Any:
    for kind in kinds:
        try:
            return _convert(kind, value, where)
        except InvalidValue as error:
            problem = error
    raise problem


def _sequence(origin: Any, kinds: tuple[Any, ...], value: object, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise InvalidValue(f"{where} is not a list: {value!r:.80}")
    is_fixed = origin is tuple and (len(kinds) != 2 or kinds[1] is not Ellipsis)
    if is_fixed and len(kinds) != len(value):
        raise InvalidValue(f"{where} has {len(value)} values in place of {len(kinds)}")
    item_kinds = kinds if is_fixed else kinds[:1] * len(value)
    items = (
        _convert(kind, item, f"{where}[{index}]")
        for index, (kind, item) in enumerate(zip(item_kinds, value, strict=True))
    )
    return list(items) if origin is list else tuple(items)


def _mapping(kinds: tuple[Any, ...], value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValue(f"{where} is not an object: {value!r:.80}")
    return {key: _convert(kinds[1], item, f"{where}.{key}") for key, item in value.items()}
