"""Recipes: one model, one engine, one image, and the flags that are known to work, each with a reason.

A recipe has no size flags. `serves` says how much context and how many users it is for, and the flags for
that (`max-model-len`, `ctx-size`, ...) are derived from it; the planner decides how much memory it may
take. So there is one source of truth, and a user who wants other sizes changes one thing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from msgspec import Meta, field, structs

from firesteel.catalog.request_settings import RecipeRequests
from firesteel.engines.engine import size_flags
from firesteel.errors import InvalidFile
from firesteel.facts.evidence import Evidence, Sources
from firesteel.launch import EngineName, FlagValue
from firesteel.values import Expand, FileValue, PositiveInt, Value, YamlFile, as_json

Status = Literal["measured", "reported", "untried"]
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z", re.IGNORECASE | re.ASCII)


def flag_value(value: Any) -> Any:
    """`true` is a bare flag and `false` its `--no-` form; a map or list is JSON; everything else is text."""
    if isinstance(value, dict | list):
        return as_json(value)
    if value is None:
        raise ValueError("needs a value; write true for a flag that takes none")
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


class Setting(FileValue):
    """A flag or an environment variable, and the reason for it."""

    value: Annotated[FlagValue, Expand(flag_value)]
    why: str


class Correction(FileValue):
    """What guides in circulation recommend, and why this recipe does not."""

    was: str
    why: str
    source: Evidence


class Quality(FileValue):
    """A score as its publisher reports it, with that of the unquantized model."""

    suite: str
    this: float
    source: Evidence
    baseline: float | None = None
    """None: the publisher gives no score to compare with."""


AssetKind = Literal["file", "package", "draft"]
AssetName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.\[\],<>=!~/-]*$", max_length=200)]
"""A Hub repository or a pip requirement, safe in a shell when quoted."""
AdapterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", max_length=1000)]
ContainerPath = Annotated[str, Meta(pattern=r"^/[\w./-]+$", max_length=200)]
RepositoryPath = Annotated[str, Meta(pattern=r"^[\w.][\w./-]*$", max_length=200)]


class Asset(FileValue):
    """Something that the engine needs before it starts, and that is in neither the model nor the image.

    A file or a folder of a Hub repository is linked to `target` inside the container; a package is installed
    there; the engine itself fetches a draft model that has its own repository.
    """

    kind: AssetKind
    name: AssetName
    why: str
    path: RepositoryPath | None = None
    """The file in the repository; None: all of it."""
    target: ContainerPath | None = None
    bytes: PositiveInt | None = None
    """What a draft adds to the weights."""
    source: Evidence | None = None

    def __post_init__(self) -> None:
        if self.kind == "file" and not (self.path and self.target):
            raise ValueError("a file needs its `path` in the repository and its `target` in the container")
        if ".." in (self.path or "").split("/") or ".." in (self.target or "").split("/"):
            raise ValueError("`..` is not allowed in a path")
        if self.kind == "package" and (self.path or self.target):
            raise ValueError("a package has neither `path` nor `target`")

    @property
    def fetch_command(self) -> str | None:
        """For a shell in the container; None: the engine fetches it. `hf download` prints the path in the
        cache, which is mounted: the second start needs no network."""
        if self.kind == "package":
            return f"python3 -m pip install --no-cache-dir {shlex.quote(self.name)}"
        if self.target is None:
            return None
        download = shlex.join(["hf", "download", "--quiet", self.name, *([self.path] if self.path else [])])
        folder = PurePosixPath(self.target).parent
        return f'mkdir -p {shlex.quote(str(folder))} && ln -sfn "$({download})" {shlex.quote(self.target)}'


class Recipe(Value):
    name: str
    path: str
    """The file that it was read from, for messages."""
    title: str
    model: str
    engine: EngineName
    image: str
    context: int
    users: int
    status: Status
    sources: tuple[Evidence, ...]
    sparks: int = 1
    fallback: str | None = None
    """Of a recipe for several Sparks: the recipe that one of them serves while another is lost."""
    flags: Mapping[str, Setting] = {}
    env: Mapping[str, Setting] = {}
    assets: tuple[Asset, ...] = ()
    adapters: Mapping[str, str] = {}
    """LoRA, by the name that clients ask for: a PEFT folder, a GGUF, or a Hub id."""
    requests: RecipeRequests = field(default_factory=RecipeRequests)
    """How the publisher of the model wants it to be asked."""
    quality: tuple[Quality, ...] = ()
    corrects: tuple[Correction, ...] = ()
    note: str | None = None


class EnvSchema(FileValue, kw_only=True):
    """Unlike a flag, a variable is always text: `true` stays `true`."""

    value: str
    why: str


class ServesSchema(FileValue, kw_only=True):
    context: PositiveInt
    users: PositiveInt


class RecipeSchema(FileValue, kw_only=True):
    title: str
    model: str
    engine: EngineName
    image: str
    sparks: PositiveInt = 1
    fallback: str | None = None
    serves: ServesSchema
    flags: dict[Annotated[str, Meta(pattern="^[a-z][a-z0-9-]*$", max_length=1000)], Setting] = {}
    env: dict[str, EnvSchema] = {}
    assets: tuple[Asset, ...] = ()
    adapters: dict[AdapterName, str] = {}
    requests: RecipeRequests = RecipeRequests()
    quality: tuple[Quality, ...] = ()
    status: Status
    corrects: tuple[Correction, ...] = ()
    sources: Sources
    note: str | None = None


def read_recipe(name: str, file: YamlFile) -> Recipe:
    """Parse a recipe file. Raise InvalidFile with the lines of its mistakes."""
    if not _NAME.match(name):  # it becomes a folder, a container and a command-line argument
        raise InvalidFile(
            f"{file.name}:1: `{name}` cannot be the name of a recipe: it must begin with a letter or a digit"
            " and contain only letters, digits, `.`, `_` and `-`",
            next=f"rename {file.name}",
        )
    schema = file.convert(RecipeSchema)
    derived = size_flags(schema.engine, schema.serves.context, schema.serves.users)
    for flag in schema.flags:
        if flag in derived:
            raise file.mistake(("flags", flag), f"`{flag}` is derived from `serves`; leave it out")
    values = structs.asdict(schema)
    serves = values.pop("serves")
    values["env"] = {name: Setting(setting.value, setting.why) for name, setting in schema.env.items()}
    return Recipe(name=name, path=file.name, context=serves.context, users=serves.users, **values)
