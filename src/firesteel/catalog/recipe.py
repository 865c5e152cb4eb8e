"""Recipes: one model, one engine, one image, and the flags that are known to work, each with a reason.

A recipe never gives sizes. How much context and how many users it serves stand in `serves`, and the
flags that say so are made from there (`max-model-len`, `ctx-size`, ...); how much memory it may take
is the planner's answer. So there is one truth, and a user who asks for other sizes changes one thing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from firesteel import engines, sheets
from firesteel.catalog.mistake import mistake
from firesteel.facts.evidence import Source, Sources
from firesteel.launch import EngineName, FlagValue

Status = Literal["measured", "reported", "untried"]
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag or an environment variable, and why it is there."""

    value: FlagValue
    why: str


@dataclass(frozen=True, slots=True)
class Correction:
    """What guides in circulation say here, and why this recipe does not."""

    was: str
    why: str
    source: Source


@dataclass(frozen=True, slots=True)
class Quality:
    """A score as its publisher reports it, beside the unquantized model's."""

    suite: str
    baseline: float
    this: float
    source: Source


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    path: str
    """The file it stands in, for messages."""
    title: str
    model: str
    engine: EngineName
    image: str
    context: int
    users: int
    status: Status
    sources: tuple[Source, ...]
    sparks: int = 1
    flags: Mapping[str, Setting] = field(default_factory=dict)
    env: Mapping[str, Setting] = field(default_factory=dict)
    requests: Mapping[str, object] = field(default_factory=dict)
    """Sampling parameters that the model's makers advise, for clients."""
    quality: tuple[Quality, ...] = ()
    corrects: tuple[Correction, ...] = ()
    note: str | None = None


def _plain(value: Any) -> Any:
    """Text inside a JSON flag -> the JSON value that it spells, or the text itself."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _flag_value(value: Any) -> Any:
    """`true` is a bare flag and `false` its `--no-` twin; a map or list is JSON; all else is text."""
    if isinstance(value, dict | list):
        return _plain(value)
    if value is None:
        raise ValueError("needs a value; write true for a flag that takes none")
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


class FlagSheet(sheets.Sheet):
    value: Annotated[FlagValue, BeforeValidator(_flag_value)]
    why: str


class EnvSheet(sheets.Sheet):
    value: str
    why: str


class ServesSheet(sheets.Sheet):
    context: PositiveInt
    users: PositiveInt


class CorrectionSheet(sheets.Sheet):
    was: str
    why: str
    source: Source


class QualitySheet(sheets.Sheet):
    suite: str
    baseline: float
    this: float
    source: Source


class RecipeSheet(sheets.Sheet):
    title: str
    model: str
    engine: EngineName
    image: str
    sparks: PositiveInt = 1
    serves: ServesSheet
    flags: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9-]*$")], FlagSheet] = {}
    env: dict[str, EnvSheet] = {}
    requests: dict[str, Annotated[Any, BeforeValidator(_plain)]] = {}
    quality: tuple[QualitySheet, ...] = ()
    status: Status
    corrects: tuple[CorrectionSheet, ...] = ()
    sources: Sources
    note: str | None = None


def read_recipe(name: str, path: str, text: str) -> Recipe:
    """The text of a recipe file -> a recipe, or BadSheet with the lines of its mistakes."""
    _refuse_name(name, path)
    sheet = sheets.load(path, text, RecipeSheet)
    _refuse_sizes(path, text, sheet)
    return Recipe(
        name=name,
        path=path,
        title=sheet.title,
        model=sheet.model,
        engine=sheet.engine,
        image=sheet.image,
        context=sheet.serves.context,
        users=sheet.serves.users,
        status=sheet.status,
        sources=sheet.sources,
        sparks=sheet.sparks,
        flags={flag: Setting(given.value, given.why) for flag, given in sheet.flags.items()},
        env={variable: Setting(given.value, given.why) for variable, given in sheet.env.items()},
        requests=sheet.requests,
        quality=tuple(Quality(each.suite, each.baseline, each.this, each.source) for each in sheet.quality),
        corrects=tuple(Correction(each.was, each.why, each.source) for each in sheet.corrects),
        note=sheet.note,
    )


def _refuse_name(name: str, path: str) -> None:
    """A name becomes a folder, a container and a word on a command line."""
    if not _NAME.match(name):
        raise sheets.BadSheet(
            f"{path}:1: `{name}` cannot be a recipe's name: it must begin with a letter or a digit and hold"
            " only letters, digits, `.`, `_` and `-`",
            next=f"rename {path}",
        )


def _refuse_sizes(path: str, text: str, sheet: RecipeSheet) -> None:
    sized = engines.size_flags(sheet.engine, sheet.serves.context, sheet.serves.users)
    for flag in sheet.flags:
        if flag in sized:
            raise mistake(path, text, ("flags", flag), f"`{flag}` is made from `serves`; leave it out")
