"""Schemas of YAML files: plain frozen dataclasses, checked by `yaml_schema.load`.

    @file_schema
    class Serves:
        context: PositiveInt
        users: PositiveInt = 1

The classes are values like any other: cheap to define and to pickle, and defining one loads no validation
library. Pydantic, which takes longer to import than a plan takes to compute, is loaded only to read a file
(`yaml_schema`); shipped files are read once and then come from a cache (`package_data`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

from firesteel.dataclass import dataclass

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

T = TypeVar("T")
STRICT = {"extra": "forbid"}
"""For pydantic: an unknown key is a mistake."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def file_schema(cls: type[T]) -> type[T]:
    """A frozen dataclass with keyword arguments; in a file, an unknown key is a mistake."""
    cls.__pydantic_config__ = STRICT  # type: ignore[attr-defined]  # where pydantic looks for it
    return dataclass(frozen=True, kw_only=True)(cls)


class Before:
    """In `Annotated`: converts or refuses what the file holds, before it is given its type."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema  # only when a file is read

        return core_schema.no_info_before_validator_function(self.convert, handler(source))


class After(Before):
    """In `Annotated`: checks or converts a value that has its type."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.convert, handler(source))


class Discriminator:
    """In `Annotated`: which class of a union, by the value of one key."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic import Field

        return handler(Annotated[source, Field(discriminator=self.key)])


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("should be greater than 0")
    return value


def _not_empty(value: Any) -> Any:
    if not value:
        raise ValueError("should have at least 1 item")
    return value


PositiveInt = Annotated[int, After(_positive)]
NOT_EMPTY = After(_not_empty)


def between(low: float, high: float) -> After:
    def check(value: Any) -> Any:
        if not low <= value <= high:
            raise ValueError(f"should be from {low:g} to {high:g}")
        return value

    return After(check)


def matching(pattern: str, max_length: int = 1000) -> After:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if len(value) > max_length or not compiled.search(value):
            raise ValueError(f"should match pattern '{pattern}'")
        return value

    return After(check)
