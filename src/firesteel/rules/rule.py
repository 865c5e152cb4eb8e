"""A rule: when it holds, what then happens, what to write instead, and who saw it.

Rules are data in `data/rules/*.yaml`. `when` is a closed set of matchers, all of which must hold; `also` are
further sets that must hold, `unless` sets that must not. What no matcher can say is a predicate in Python,
called by its name. Every rule carries lines that it must hit and lines that it must miss; tests run them.

    stop   certain to crash, to garble or to wedge the host
    warn   likely to hurt, or silently does nothing
    note   worth knowing
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from firesteel import yaml_schema
from firesteel.catalog import VersionRange
from firesteel.errors import UsageError
from firesteel.facts.evidence import Sources
from firesteel.launch import EngineName
from firesteel.rules.predicates import PREDICATES
from firesteel.units import parse_size

Level = Literal["stop", "warn", "note"]
Confidence = Literal["verified", "reported", "claimed"]
"""verified: in the engine's source, or reproduced. reported: users or maintainers agree.
claimed: one voice."""


def _is_predicate(name: str) -> str:
    if name not in PREDICATES:
        raise ValueError(f"no such predicate; there are {', '.join(sorted(PREDICATES))}")
    return name


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _bytes(value: object) -> object:
    return parse_size(value, docker=True) if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
"""One text or a list: any of them will do."""


class When(yaml_schema.FileSchema):
    """Matchers; every one that is given must hold."""

    engine: EngineName | None = None
    version: VersionRange | None = None
    """A moving tag counts as the newest version known. Where nothing is known, a range without an upper end
    that the newest version is in may hold, and `check` says so; any other range does not."""
    hardware: str | None = None
    model: Texts | None = None
    """Patterns like `*gpt-oss*`, whatever the case."""
    container: bool | None = None
    network: Texts | None = None

    flag: Texts | None = None
    """Any of these is given; the six below say how."""
    bare: bool | None = None
    value: Texts | None = None
    """Whatever the case; a switch is `true`, its `--no-` twin `false`."""
    other_than: Texts | None = None
    above: float | None = None
    up_to: float | None = None
    number: bool | None = None
    """Whether the text is a number; what a shell has yet to fill in may be one and matches neither way."""
    key: str | None = None
    """A key inside the flag's JSON, `a.b` for one inside another; the value matchers then look at it."""

    absent: str | None = None
    """This flag is not given, though the engine is told what to serve."""
    env: Texts | None = None
    """Patterns of variable names."""
    image: Texts | None = None
    """Patterns of image references."""
    known_image: bool | None = None
    """Whether the catalog knows the container's image."""
    upstream: bool | None = None
    """Whether the container's image is made by the engine's own makers; a fork may be patched."""
    image_lacks: str | None = None
    """A compute capability that the image is known to have no code for."""
    after_entrypoint: Literal["engine", "shell"] | None = None
    """The image starts its engine itself, and yet a program stands after it."""
    option: Texts | None = None
    """Any other option of `docker run`."""
    restart: Texts | None = None
    shm_above: Annotated[int, BeforeValidator(_bytes)] | None = None
    extra: Texts | None = None
    """Patterns of words that the engine has no place for."""
    flaw: Literal["blank", "lost", "dash"] | None = None
    """The text itself is broken: a blank after a backslash, flags behind the end, a dash that is none."""
    predicate: Annotated[str, AfterValidator(_is_predicate)] | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("needs at least one matcher")
        about = {"bare", "value", "other_than", "above", "up_to", "number", "key"} & self.model_fields_set
        if about and not self.flag:
            raise ValueError(f"`{min(about)}` needs a `flag` to look at")
        return self


class Fix(yaml_schema.FileSchema):
    """A change after which the launch does what its author meant; one of these. `--fix` makes it."""

    drop: Literal["true"] | None = None
    """Take away what was seen: it does nothing, or repeats what is there."""
    rename: str | None = None
    """Another flag with the same value."""
    set: str | None = None
    """Another value of the same flag."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("needs exactly one of `drop`, `rename` and `set`")
        return self


class Rule(yaml_schema.FileSchema):
    id: Annotated[str, Field(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$")]
    level: Level
    says: str
    """What happens. May hold {name}, {value}, {image} and {model} of what was seen."""
    when: When
    also: tuple[When, ...] = ()
    unless: tuple[When, ...] = ()
    instead: str | None = None
    fix: Fix | None = None
    confidence: Confidence
    sources: Sources
    hits: Annotated[tuple[str, ...], Field(min_length=1)]
    misses: Annotated[tuple[str, ...], Field(min_length=1)]


class RulesSchema(yaml_schema.FileSchema):
    rules: tuple[Rule, ...]


def read_rules(path: str, text: str) -> tuple[Rule, ...]:
    """The text of a rule file -> its rules, or BadSheet with the lines of its mistakes."""
    found = yaml_schema.load(path, text, RulesSchema).rules
    seen: set[str] = set()
    for index, rule in enumerate(found):
        if rule.id in seen:
            line = yaml_schema.read(path, text)[1]["rules", index, "id"]
            raise yaml_schema.InvalidFile(
                f"{path}:{line}: there are two rules `{rule.id}`", next=f"correct {path}"
            )
        seen.add(rule.id)
    return found


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule that comes with firesteel."""
    return tuple({rule.id: rule for _, found in rule_files() for rule in found}.values())


def rule_files() -> Iterator[tuple[str, tuple[Rule, ...]]]:
    """The files of rules, each with its own."""
    for path, text in _files():
        yield path, read_rules(path, text)


def _files() -> Iterator[tuple[str, str]]:
    folder = files("firesteel") / "data" / "rules"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            yield f"rules/{entry.name}", entry.read_text("utf-8")


def explain(rule_id: str) -> Rule:
    for rule in rules():
        if rule.id == rule_id:
            return rule
    raise UsageError(
        f"there is no rule `{rule_id}`", next="firesteel check FILE, which names the rules it finds"
    )
