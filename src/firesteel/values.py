"""The base of every value, and its way in from a YAML file, with every mistake and its line.

    class Part(FileValue, kw_only=True):
        size: Annotated[int, Expand(parse_size)]
        note: str = ""

    load("part.yaml", text, Part)

A `Value` is a frozen `msgspec.Struct`: declared once, checked where bytes come in, encoded as it is. Scalars
of YAML are text until the declaration gives them a type. Shorter forms that users may write (`10m`,
`small: smollm2`) are expanded first, by the `Expand` in the annotation; then msgspec converts the file as a
whole. Only when it refuses are value and type walked together (`_Walk`): msgspec reports one mistake, leaves
the keys of maps out of its path, and does not know `yes` and `on`.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from enum import Enum
from functools import cache, partial
from operator import itemgetter
from pathlib import PurePath
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import msgspec
from msgspec import Meta, ValidationError, field

from firesteel.errors import InvalidFile

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
_MAPS, _LISTS = (dict, Mapping), (tuple, list, frozenset, Sequence)
KeyPath = tuple[str | int, ...]
"""The keys and positions that lead to a value in a document."""
Mistake = tuple[KeyPath, str]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(msgspec.Struct, frozen=True):
    """Immutable; equal to another of its class with equal fields."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class FileValue(Value, forbid_unknown_fields=True):
    """Something that users write: an unknown key is a mistake."""


def replace(value: S, /, **changes: Any) -> S:
    """The value with these fields changed."""
    return msgspec.structs.replace(value, **changes)


def plain(value: Any) -> Any:
    """As maps, lists, text and numbers, which `json.dumps` takes."""
    return msgspec.to_builtins(value, enc_hook=_path)


def encode_json(value: Any) -> str:
    """As an indented JSON document."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=_path), indent=1).decode()


def _path(value: Any) -> str:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def printed_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of what `encode_json` writes: keys with a default are there too."""
    import inspect  # takes longer to load than this module

    _, components = msgspec.json.schema_components(
        [kind], schema_hook=_schema_of_other, ref_template="#/$defs/{name}"
    )
    for component in components.values():
        if "description" in component:  # Python 3.13 takes the indentation away by itself
            component["description"] = inspect.cleandoc(component["description"])
        if "properties" in component:
            component["required"] = list(component["properties"])
            for name, key in component["properties"].items():
                if len(key.get("enum", ())) == 1:
                    key |= {"default": key["enum"][0]} if name == "document" else {}
                    key["const"] = key.pop("enum")[0]
    own: dict[str, Any] = components.pop(kind.__name__)
    return own | {"additionalProperties": False} | ({"$defs": components} if components else {})


def _schema_of_other(kind: type) -> dict[str, Any]:
    """A path, or anything: msgspec takes no empty schema for that."""
    anything = ["object", "array", "string", "number", "boolean", "null"]
    return {"type": "string" if issubclass(kind, PurePath) else anything}


class InvalidValue(ValueError):
    """The JSON value does not have the declared type; the message names the place of the first mistake."""


def from_json(kind: type[T], value: Any) -> T:
    """`value`, as `json.loads` gives it, as a `kind`; keys of a newer release are ignored.

    A state file that was edited, cut short or written by another release comes back as it was written, or not
    at all. Nothing is converted: `"3"` is not 3, and true is not 1.
    """
    try:
        return msgspec.convert(value, kind)
    except ValidationError as error:
        walk = _Walk(value, strict=True)
        walk.convert(value, kind, ())
        path, what = walk.mistakes[0] if walk.mistakes else ((), str(error))
        raise InvalidValue(f"{_shown(path) or '`the whole`: '}{what}"[:200]) from None


class Expand:
    """In `Annotated`: converts what a file holds, before it gets its type; a ValueError is a mistake.

    Of a type that accepts anything (`Any`), it must not raise.
    """

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert


def as_json(value: Any) -> Any:
    """Each text in it -> the JSON value that it spells, or the text itself."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


class ExpandText(Expand):
    """For text alone; anything else is left for msgspec to refuse."""

    def __init__(self, convert: Callable[[str], Any]) -> None:
        super().__init__(lambda value: convert(value) if isinstance(value, str) else value)


def check_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


PositiveInt = Annotated[int, Meta(gt=0)]
NOT_EMPTY = Meta(min_length=1)
Texts = Annotated[tuple[str, ...], NOT_EMPTY, ExpandText(lambda text: (text,))]
"""One text, or a list of at least one."""
Regex = Annotated[str, ExpandText(check_regex)]


Lines = Mapping[KeyPath, int]


class YamlFile:
    """What a YAML file holds, before it gets types."""

    def __init__(self, name: str, value: Any, lines: Callable[[], Lines]) -> None:
        self.name = name
        self.value = value
        self._lines = lines

    @classmethod
    def parse(cls, name: str, text: str) -> YamlFile:
        """Raises InvalidFile for what is not YAML."""
        from firesteel import yaml_reader  # loads PyYAML

        value, lines = yaml_reader.read(name, text)
        return cls(name, value, lambda: lines)

    @property
    def lines(self) -> Lines:
        """The line of each value."""
        return self._lines()

    def convert(self, kind: type[T]) -> T:
        """All of it as a `kind`. Raise InvalidFile with `name:line` for every mistake."""
        expanded = _expand(kind, self.value)
        try:
            return msgspec.convert(expanded, kind, strict=False)
        except ValidationError:
            walk = _Walk(self.value, strict=False)
            converted = walk.convert(expanded, kind, ())
        if not walk.mistakes:
            return msgspec.convert(converted, kind, strict=False)
        raise self.mistakes((path, f"{_shown(path)}{what}") for path, what in walk.mistakes)

    def mistake(self, path: KeyPath, what: str) -> InvalidFile:
        """The error for a value that only its reader can judge."""
        line = self._line(path)
        return InvalidFile(f"{self.name}:{line}: {what}", next=f"correct {self.name} at line {line}")

    def mistakes(self, found: Iterable[Mistake]) -> InvalidFile:
        """The error that names each of these with its line."""
        said = sorted(((self._line(path), what) for path, what in found), key=itemgetter(0))
        return InvalidFile(
            "\n".join(f"{self.name}:{line}: {what}" for line, what in said), next=f"correct {self.name}"
        )

    def _line(self, path: KeyPath) -> int:
        """Of the place, or of what it is in: what was written in a short form has no separate line."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def load(name: str, text: str, kind: type[T]) -> T:
    """The text of the YAML file `name` as a `kind`. Raise InvalidFile with `name:line` for every mistake."""
    return YamlFile.parse(name, text).convert(kind)


def _shown(path: KeyPath) -> str:
    return f"`{'.'.join(str(part) for part in path)}`: " if path else ""


# Expansion: what the annotations want done before msgspec sees the value.

_Expansion = Callable[[Any], Any]


class _Refused:
    """Stands where an expansion failed. No type that has an `Expand` accepts it."""

    def __init__(self, why: str) -> None:
        self.why = why


def _expand(kind: Any, value: Any) -> Any:
    expansion = _expansion(kind)
    return expansion(value) if expansion else value


@cache
def _expansion(kind: Any) -> _Expansion | None:
    """None: values of this type are taken as they stand."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner = _expansion(arguments[0])
        own = [each.convert for each in kind.__metadata__ if isinstance(each, Expand)]
        return partial(_apply, own, inner) if own else inner
    if origin in (Union, types.UnionType):
        found = {each: inner for each in arguments if (inner := _expansion(each))}
        return partial(_expand_member, arguments, found) if found else None
    if _is_struct(kind):
        inners = {name: inner for name, key in _keys(kind).items() if (inner := _expansion(key.kind))}
        return partial(_expand_keys, inners) if inners else None
    if origin in _MAPS:
        inner = _expansion(arguments[1])
        return partial(_expand_items, inner) if inner else None
    inner = _expansion(arguments[0]) if origin in _LISTS else None
    return partial(_expand_list, inner) if inner else None


def _apply(own: list[Callable[[Any], Any]], inner: _Expansion | None, value: Any) -> Any:
    try:
        for convert in own:
            value = convert(value)
    except ValueError as error:
        return _Refused(str(error))
    return inner(value) if inner else value


def _expand_member(kinds: tuple[Any, ...], inners: Mapping[Any, _Expansion], value: Any) -> Any:
    """By the only kind besides None, or by the class that the value's tag names."""
    if value is None:
        return None
    kind = next((each for each in inners if len(kinds) == 2 or _takes_map(each, value)), None)
    return inners[kind](value) if kind else value


def _expand_keys(inners: Mapping[str, _Expansion], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return value | {key: inner(value[key]) for key, inner in inners.items() if key in value}


def _expand_items(inner: _Expansion, value: Any) -> Any:
    return {key: inner(item) for key, item in value.items()} if isinstance(value, dict) else value


def _expand_list(inner: _Expansion, value: Any) -> Any:
    return [inner(item) for item in value] if isinstance(value, (list, tuple)) else value


# What is wrong with a value that msgspec has refused.

_TRUE, _FALSE = frozenset(("yes", "y", "on", "t")), frozenset(("no", "n", "off", "f"))
_GROUPED_DIGITS = re.compile(r"[+-]?\d+(_\d+)*")
_WANTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    date: "a date like 2026-11-15",
}


class _Walk:
    """Compares a value with its type and notes every mistake.

    It also converts what YAML users write and msgspec does not accept: `yes`, `on`, `131_072`.
    """

    def __init__(self, given: Any, *, strict: bool) -> None:
        self._given = given
        self._strict = strict
        self.mistakes: list[Mistake] = []

    def convert(self, value: Any, kind: Any, path: KeyPath) -> Any:
        if isinstance(value, _Refused):
            self.mistakes.append((path, value.why))
            return None
        if self._refusal(value, kind) is None:
            return value
        known = len(self.mistakes)
        member = _member((kind,), value)
        converted = self._convert_parts(value, member, path)
        if len(self.mistakes) == known and (refusal := self._refusal(converted, kind)):
            self.mistakes.append((path, _sentence(refusal, member) + self._got(path)))
        return converted

    def _refusal(self, value: Any, kind: Any) -> str | None:
        try:
            msgspec.convert(value, kind, strict=self._strict)
        except ValidationError as error:
            return str(error)
        return None

    def _convert_parts(self, value: Any, kind: Any, path: KeyPath) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if isinstance(value, dict) and _is_struct(kind):
            return self._convert_keys(value, kind, path)
        if isinstance(value, dict) and origin in _MAPS:
            for key in value:
                self.convert(key, arguments[0], (*path, key))
            return {key: self.convert(item, arguments[1], (*path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)) and origin in _LISTS:
            is_fixed = origin is tuple and len(arguments) == len(value) and ... not in arguments
            kinds = arguments if is_fixed else arguments[:1] * len(value)
            pairs = zip(value, kinds, strict=True)
            return [self.convert(item, kind, (*path, at)) for at, (item, kind) in enumerate(pairs)]
        if isinstance(value, dict) and (tagged := [each for each in _members((kind,)) if _tag_field(each)]):
            tags = _either([each.__struct_config__.tag for each in tagged])
            self.mistakes.append(((*path, _tag_field(tagged[0])), f"should be {tags}"))
        return _convert_text(value.strip(), kind) if isinstance(value, str) and not self._strict else value

    def _convert_keys(self, value: dict[str, Any], kind: Any, path: KeyPath) -> dict[str, Any]:
        keys = _keys(kind)
        if _is_struct(kind) and kind.__struct_config__.forbid_unknown_fields:
            unknown = [key for key in value if key not in keys and key != _tag_field(kind)]
            self.mistakes += (((*path, key), "no such key") for key in unknown)
        missing = [name for name, key in keys.items() if key.is_required and name not in value]
        self.mistakes += (((*path, name), "is missing") for name in missing)
        return {
            key: self.convert(item, keys[key].kind, (*path, key)) if key in keys else item
            for key, item in value.items()
        }

    def _got(self, path: KeyPath) -> str:
        """What the file has there, as far as it was not written in a shorter form."""
        value = self._given
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return ""
        return f", got `{value}`" if isinstance(value, str) else ""


def _convert_text(text: str, kind: Any) -> Any:
    if kind is bool and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if kind is int and _GROUPED_DIGITS.fullmatch(text):
        return int(text)
    return text


def _sentence(refusal: str, kind: Any) -> str:
    """What msgspec says of one value, in the words of a user."""
    said = refusal.partition(" - at `")[0]
    if found := re.fullmatch(r"Expected `(\w+)` of length ([<>]=)? ?(\d+)(?:, got \d+)?", said):
        parts = {"array": "item", "object": "entry"}.get(found[1], "character")
        several = "entries" if parts == "entry" else f"{parts}s"
        bound = {">=": "at least ", "<=": "at most "}.get(found[2], "")
        return f"should have {bound}{found[3]} {parts if found[3] == '1' else several}"
    if found := re.fullmatch(r"Expected `(\w+)` ([<>]=?) (\S+)", said):
        words = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
        return f"should be {words[found[2]]} {found[3]}"
    if found := re.fullmatch(r"Expected `str` matching regex (.*)", said):
        return f"should match pattern {found[1]}"
    if get_origin(kind) is Literal:
        return f"should be {_either(get_args(kind))}"
    if said.startswith(("Expected", "Invalid")):
        return f"should be {_wanted(kind)}"
    return said


def _either(words: Sequence[object]) -> str:
    *others, last = (f"`{word}`" for word in words)
    return f"{', '.join(others)} or {last}" if others else last


def _wanted(kind: Any) -> str:
    if wanted := _WANTED.get(kind):
        return wanted
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _either([member.value for member in kind])
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(each) for each in get_args(kind) if each is not type(None))
    if _is_struct(kind) or origin in _MAPS:
        return "a map"
    return "a list" if origin in _LISTS else f"of the type {kind}"


# What the two share: the fields of a class, and the member of a union that a value is meant for.


class _Key(NamedTuple):
    kind: Any
    is_required: bool


@cache
def _keys(kind: Any) -> dict[str, _Key]:
    return {each.encode_name: _Key(each.type, each.required) for each in msgspec.structs.fields(kind)}


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _tag_field(kind: Any) -> Any:
    return kind.__struct_config__.tag_field if _is_struct(kind) else None


def _member(kinds: tuple[Any, ...], value: Any) -> Any:
    """Which of these kinds `value` is meant for, without `Annotated` and None; a union if that is open."""
    members = tuple(_members(kinds))
    if len(members) == 1:
        return members[0]
    if isinstance(value, dict):
        fitting = [each for each in members if _takes_map(each, value)]
    elif isinstance(value, (list, tuple)):
        fitting = [each for each in members if get_origin(each) in _LISTS]
    else:
        fitting = [each for each in members if each is bool and str not in members]
    return fitting[0] if len(fitting) == 1 else Union[members]  # noqa: UP007  # a tuple of types


def _takes_map(kind: Any, value: dict[str, Any]) -> bool:
    if not _is_struct(kind):
        return get_origin(kind) in _MAPS
    config = kind.__struct_config__
    return config.tag is None or value.get(config.tag_field) == config.tag


def _members(kinds: tuple[Any, ...]) -> Iterator[Any]:
    for kind in kinds:
        while get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        if get_origin(kind) in (Union, types.UnionType):
            yield from _members(get_args(kind))
        elif kind is not type(None):
            yield kind
