"""Recipes: one model, one engine, one image, and the flags that are known to work, each with a reason.

A recipe has no size flags. `serves` says how much context and how many users it is for, and the flags for
that (`max-model-len`, `ctx-size`, ...) are derived from it; the planner decides how much memory it may
take. So there is one source of truth, and a user who wants other sizes changes one thing.

`requests` says how the model should be asked (`RecipeRequests`). `read_recipe` and `dump_recipe` are inverse.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from firesteel.engines.engine import request_flags, size_flags
from firesteel.errors import InvalidFile
from firesteel.facts.evidence import Evidence, Sources
from firesteel.launch import EngineName, FlagValue
from firesteel.values import Expand, FileValue, PositiveInt, YamlFile, as_json, plain

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed",
)  # fmt: skip
"""The names of a request body; every engine here takes them."""


Body = Annotated[Mapping[str, Any], Expand(as_json)]


class RecipeRequests(FileValue, kw_only=True):
    """How a model should be asked, with the reason.

    One value, used by every way that a request can take: launch flags (`launch_flags`), the files of
    clients (`render.clients`), the gateway's defaults, and the questions of `verify`. What a request itself
    says goes first in all of them.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    thinking: Literal["on", "off"] | None = None
    """Whether the model thinks when it is asked so; None: it cannot, or it is not known."""
    per_request: Body = {}
    """More of the body, sent with every request: `{chat_template_kwargs: {enable_thinking: true}}`."""
    for_tools: Body = {}
    """In place of the above where a request offers tools."""
    instead: Mapping[str, Body] = {}
    """What a request may say instead, by what that does: `{no thinking: {...}}`."""
    system_prompt: str | None = None
    """The file of the repository with the prompt that its publisher wants first."""
    why: str | None = None
    source: Evidence | None = None

    @property
    def sampling(self) -> dict[str, float]:
        return {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}

    @property
    def body(self) -> dict[str, Any]:
        """What every request should say, as in a request body."""
        return {**self.sampling, **self.per_request}

    @property
    def tool_body(self) -> dict[str, Any]:
        """The same for a request that offers tools."""
        return {**self.body, **self.for_tools}

    @property
    def template(self) -> dict[str, Any]:
        """Arguments of the chat template: `{"enable_thinking": True}`."""
        return dict(self.per_request.get("chat_template_kwargs") or {})

    def launch_flags(self, engine: EngineName, version: str | None) -> dict[str, FlagValue]:
        """The part that this release of the engine takes as defaults of every request."""
        return request_flags(engine, version, self.sampling, self.template)

    def __bool__(self) -> bool:
        return bool(self.body or self.for_tools or self.instead or self.thinking or self.system_prompt)


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


class EnvSetting(Setting):
    """Unlike a flag, a variable is always text: `true` stays `true`."""

    value: str


class Serves(FileValue, kw_only=True):
    context: PositiveInt
    users: PositiveInt


class RecipeFile(FileValue, kw_only=True):
    title: str
    model: str
    engine: EngineName
    image: str
    sparks: PositiveInt = 1
    fallback: str | None = None
    """Of a recipe for several Sparks: the recipe that one of them serves while another is lost."""
    serves: Serves
    flags: Mapping[Annotated[str, Meta(pattern="^[a-z][a-z0-9-]*$", max_length=1000)], Setting] = {}
    env: Mapping[str, EnvSetting] = {}
    assets: tuple[Asset, ...] = ()
    adapters: Mapping[AdapterName, str] = {}
    """LoRA, by the name that clients ask for: a PEFT folder, a GGUF, or a Hub id."""
    requests: RecipeRequests = RecipeRequests()
    """How the publisher of the model wants it to be asked."""
    quality: tuple[Quality, ...] = ()
    status: Status
    corrects: tuple[Correction, ...] = ()
    sources: Sources
    note: str | None = None

    @property
    def context(self) -> int:
        return self.serves.context

    @property
    def users(self) -> int:
        return self.serves.users


class Recipe(RecipeFile, kw_only=True):
    name: str
    path: str
    """The file that it was read from, for messages."""


def read_recipe(name: str, file: YamlFile) -> Recipe:
    """Parse a recipe file. Raise InvalidFile with the lines of its mistakes."""
    if not _NAME.match(name):  # it becomes a folder, a container and a command-line argument
        raise InvalidFile(
            f"{file.name}:1: `{name}` cannot be the name of a recipe: it must begin with a letter or a digit"
            " and contain only letters, digits, `.`, `_` and `-`",
            next=f"rename {file.name}",
        )
    written = file.convert(RecipeFile)
    derived = size_flags(written.engine, written.context, written.users)
    for flag in written.flags:
        if flag in derived:
            raise file.mistake(("flags", flag), f"`{flag}` is derived from `serves`; leave it out")
    return Recipe(name=name, path=file.name, **structs.asdict(written))


def dump_recipe(recipe: Recipe) -> str:
    """YAML that reads back as the same recipe; what is empty is left out."""
    import yaml  # slow to load, and only few commands write a recipe

    document = {
        "title": recipe.title, "model": recipe.model, "engine": recipe.engine, "image": recipe.image,
        "sparks": recipe.sparks, "serves": {"context": recipe.context, "users": recipe.users},
        "flags": _settings(recipe.flags), "env": _settings(recipe.env),
        "assets": [_filled(asset) for asset in recipe.assets], "requests": _filled(recipe.requests),
        "quality": [_filled(score) for score in recipe.quality], "status": recipe.status,
        "corrects": [_filled(row) for row in recipe.corrects],
        "sources": [_filled(source) for source in recipe.sources], "note": recipe.note,
    }  # fmt: skip
    filled = {name: value for name, value in document.items() if value not in ({}, [], None)}
    text: str = yaml.safe_dump(filled, sort_keys=False, allow_unicode=True, width=110)
    read_recipe(recipe.name, YamlFile.parse("recipe", text))  # never write a recipe that cannot be read back
    return text


def _settings(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {name: {"value": setting.value, "why": setting.why} for name, setting in settings.items()}


def _filled(value: Any) -> dict[str, Any]:
    """A value as a map, without what is not said."""
    fields: dict[str, Any] = plain(value)
    if fields.get("source"):
        fields["source"] = {name: field for name, field in fields["source"].items() if field is not None}
    return {name: field for name, field in fields.items() if field not in (None, {}, ())}
