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
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from firesteel import engines, yaml_schema
from firesteel.catalog.errors import mistake
from firesteel.facts.evidence import Evidence, Sources
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
    source: Evidence


@dataclass(frozen=True, slots=True)
class Quality:
    """A score as its publisher reports it, beside the unquantized model's."""

    suite: str
    this: float
    source: Evidence
    baseline: float | None = None
    """None: the publisher gives no other to hold it against."""


AssetKind = Literal["file", "package", "draft"]


@dataclass(frozen=True, slots=True)
class Asset:
    """Something that must be there before the engine starts, and is in neither the model nor the image.

    A file or a folder of a Hub repository is linked to `target` inside the container; a package is
    installed there; a draft model that has a repository of its own is fetched by the engine itself.
    """

    kind: AssetKind
    name: str
    """A Hub repository, or what pip calls the package."""
    why: str
    path: str | None = None
    """The file in the repository; None: all of it."""
    target: str | None = None
    bytes: int | None = None
    """What a draft adds to the weights."""
    source: Evidence | None = None


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
    sources: tuple[Evidence, ...]
    sparks: int = 1
    flags: Mapping[str, Setting] = field(default_factory=dict)
    env: Mapping[str, Setting] = field(default_factory=dict)
    assets: tuple[Asset, ...] = ()
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


class FlagSchema(yaml_schema.FileSchema):
    value: Annotated[FlagValue, BeforeValidator(_flag_value)]
    why: str


class EnvSchema(yaml_schema.FileSchema):
    value: str
    why: str


class ServesSchema(yaml_schema.FileSchema):
    context: PositiveInt
    users: PositiveInt


class CorrectionSchema(yaml_schema.FileSchema):
    was: str
    why: str
    source: Evidence


class QualitySchema(yaml_schema.FileSchema):
    suite: str
    this: float
    baseline: float | None = None
    source: Evidence


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.\[\],<>=!~/-]*$", max_length=200)]
"""A Hub repository or a pip requirement, as a shell may see it between quotes."""
Inside = Annotated[str, Field(pattern=r"^/[\w./-]+$", max_length=200)]
"""A path in the container."""


class AssetSchema(yaml_schema.FileSchema):
    kind: AssetKind
    name: Name
    why: str
    path: Annotated[str, Field(pattern=r"^[\w.][\w./-]*$", max_length=200)] | None = None
    target: Inside | None = None
    bytes: PositiveInt | None = None
    source: Evidence | None = None

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if self.kind == "file" and not (self.path and self.target):
            raise ValueError("a file needs its `path` in the repository and its `target` in the container")
        if ".." in (self.path or "").split("/") or ".." in (self.target or "").split("/"):
            raise ValueError("`..` leads out of where it belongs")
        if self.kind == "package" and (self.path or self.target):
            raise ValueError("a package has neither `path` nor `target`")
        return self

    def asset(self) -> Asset:
        return Asset(self.kind, self.name, self.why, self.path, self.target, self.bytes, self.source)


class RecipeSchema(yaml_schema.FileSchema):
    title: str
    model: str
    engine: EngineName
    image: str
    sparks: PositiveInt = 1
    serves: ServesSchema
    flags: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9-]*$")], FlagSchema] = {}
    env: dict[str, EnvSchema] = {}
    assets: tuple[AssetSchema, ...] = ()
    requests: dict[str, Annotated[Any, BeforeValidator(_plain)]] = {}
    quality: tuple[QualitySchema, ...] = ()
    status: Status
    corrects: tuple[CorrectionSchema, ...] = ()
    sources: Sources
    note: str | None = None


def read_recipe(name: str, path: str, text: str) -> Recipe:
    """The text of a recipe file -> a recipe, or BadSheet with the lines of its mistakes."""
    _refuse_name(name, path)
    sheet = yaml_schema.load(path, text, RecipeSchema)
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
        assets=tuple(each.asset() for each in sheet.assets),
        requests=sheet.requests,
        quality=tuple(Quality(each.suite, each.this, each.source, each.baseline) for each in sheet.quality),
        corrects=tuple(Correction(each.was, each.why, each.source) for each in sheet.corrects),
        note=sheet.note,
    )


def _refuse_name(name: str, path: str) -> None:
    """A name becomes a folder, a container and a word on a command line."""
    if not _NAME.match(name):
        raise yaml_schema.InvalidFile(
            f"{path}:1: `{name}` cannot be a recipe's name: it must begin with a letter or a digit and hold"
            " only letters, digits, `.`, `_` and `-`",
            next=f"rename {path}",
        )


def _refuse_sizes(path: str, text: str, sheet: RecipeSchema) -> None:
    sized = engines.size_flags(sheet.engine, sheet.serves.context, sheet.serves.users)
    for flag in sheet.flags:
        if flag in sized:
            raise mistake(path, text, ("flags", flag), f"`{flag}` is made from `serves`; leave it out")
