"""Read YAML files with strict schemas; report every mistake with its file and line.

`yaml_reader` gives plain text, and the schema (`file_schema`) the types.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from firesteel import package_data
from firesteel.errors import InvalidFile as InvalidFile

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
Path = tuple[str | int, ...]


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


def load(name: str, text: str, schema: type[T]) -> T:
    """Validate the text of the file `name`. Raise InvalidFile with `name:line` for every mistake."""
    from pydantic import ValidationError  # slow to import, and most commands read no file

    value, lines = read(name, text)
    try:
        validated: T = _adapter(schema).validate_python(value)  # type: ignore[arg-type]  # types are hashable
        return validated
    except ValidationError as error:
        mistakes = [
            f"{name}:{line_of(lines, details['loc'])}: {_where(details['loc'])}{_message(details)}"
            for details in error.errors(include_url=False)
        ]
        raise InvalidFile("\n".join(mistakes), next=f"correct {name}") from None


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    """Building one takes ten times as long as reading a recipe with it."""
    from pydantic import TypeAdapter

    return TypeAdapter(schema)


def load_data(path: str, schema: type[T]) -> T:
    """A file of the package's own `data` folder, as in `load_data("speed/fitted.yaml", ...)`."""
    return package_data.load(
        path, lambda name, text: load(name, text, schema), getattr(schema, "__qualname__", "value")
    )


def read(name: str, text: str) -> tuple[Any, dict[Path, int]]:
    """Plain values (text, lists, dicts, None) and the line of each."""
    from firesteel.yaml_reader import read  # loads PyYAML

    return read(name, text)


def mistake(name: str, text: str, path: Path, what: str) -> InvalidFile:
    """The error for a value that only its reader can judge; the text is parsed again to find the line."""
    line = read(name, text)[1].get(path, 1)
    return InvalidFile(f"{name}:{line}: {what}", next=f"correct {name} at line {line}")


def line_of(lines: dict[Path, int], path: Path) -> int:
    """Of the place, or of what it is in: what was written short has no line of its own."""
    while path not in lines:
        path = path[:-1]
    return lines[path]


def _where(path: Path) -> str:
    return f"`{'.'.join(str(part) for part in path)}`: " if path else ""


def _message(details: Any) -> str:
    if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return "no such key"
    if details["type"] == "missing":
        return "is missing"
    given = f", got `{details['input']}`" if isinstance(details["input"], str) else ""
    message = str(details["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"{message}{given}"
