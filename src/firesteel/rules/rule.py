"""A rule: when it applies, what then happens, what to write instead, and the sources.

Rules are data in `data/rules/*.yaml`. `when` is a closed set of matchers, all of which must match; `also`
are further sets that must match, `unless` sets that must not. What matchers cannot express is a predicate
in Python, referred to by name. Every rule has examples that it must hit and examples that it must miss;
tests run them.

    stop   certain to crash, to produce garbage or to hang the host
    warn   likely to do harm, or silently does nothing
    note   worth knowing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Annotated, Literal

from msgspec import Meta

from firesteel import shipped_data
from firesteel.catalog.image import VersionRange
from firesteel.errors import UsageError
from firesteel.facts.evidence import Sources
from firesteel.launch import EngineName
from firesteel.rules import containers, exposure, flag_values, known_release, model_flags, releases
from firesteel.rules.context import Context, Match
from firesteel.units import parse_size
from firesteel.values import NOT_EMPTY, Expand, ExpandText, FileValue, Texts, YamlFile

PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    **containers.PREDICATES,
    **exposure.PREDICATES,
    **flag_values.PREDICATES,
    **model_flags.PREDICATES,
    **releases.PREDICATES,
    **known_release.PREDICATES,
}
"""Conditions that matchers cannot express, by name: functions from a context to its matches."""

Level = Literal["stop", "warn", "note"]
SEVERITY: dict[Level, int] = {"stop": 0, "warn": 1, "note": 2}
Confidence = Literal["verified", "reported", "claimed"]
"""verified: in the engine's source, or reproduced. reported: users or maintainers agree.
claimed: a single source."""


def _is_predicate(name: str) -> str:
    if name not in PREDICATES:
        raise ValueError(f"no such predicate; there are {', '.join(sorted(PREDICATES))}")
    return name


def _bytes(value: object) -> object:
    return parse_size(value, docker=True) if isinstance(value, str) else value


_FLAG_DETAILS = {"bare", "value", "other_than", "above", "up_to", "number", "key"}


class When(FileValue, kw_only=True, dict=True):
    """Matchers; every one that is given must match. Of several texts, any may match."""

    engine: EngineName | None = None
    version: VersionRange | None = None
    """A moving tag counts as the newest known version. An unknown version may be in a range without an
    upper end that includes the newest version, and `check` says so; it is in no other range."""
    hardware: str | None = None
    model: Texts | None = None
    """Patterns like `*gpt-oss*`, ignoring case."""
    container: bool | None = None
    network: Texts | None = None

    flag: Texts | None = None
    """Any of these is given; the seven fields below restrict how."""
    bare: bool | None = None
    value: Texts | None = None
    """Ignoring case; a switch is `true`, its `--no-` form `false`."""
    other_than: Texts | None = None
    above: float | None = None
    up_to: float | None = None
    number: bool | None = None
    """Whether the text is a number; a shell variable may be one and matches neither way."""
    key: str | None = None
    """A key inside the flag's JSON, `a.b` for a nested one; the value matchers then apply to it."""

    absent: str | None = None
    """This flag is not given, although a model is."""
    env: Texts | None = None
    """Patterns of variable names."""
    image: Texts | None = None
    """Patterns of image references."""
    known_image: bool | None = None
    """Whether the catalog knows the container's image."""
    upstream: bool | None = None
    """Whether the image is published by the engine's own project; a fork may be patched."""
    image_lacks: str | None = None
    """A compute capability that the image is known to have no code for."""
    after_entrypoint: Literal["engine", "shell"] | None = None
    """The image starts its engine itself, and yet a program follows it."""
    option: Texts | None = None
    """Any other option of `docker run`."""
    restart: Texts | None = None
    shm_above: Annotated[int, Expand(_bytes)] | None = None
    extra: Texts | None = None
    """Patterns of arguments that the engine cannot place."""
    flaw: Literal["blank", "lost", "apart", "dash", "glued"] | None = None
    """An error in the text: a blank after a backslash, flags after the end, a typographic dash, a flag and
    its value in one word."""
    predicate: Annotated[str, ExpandText(_is_predicate)] | None = None
    across: Literal["not-read", "memory-shares", "host-port", "name", "volume"] | None = None
    """About the text or several launches of it, not about one: see `rules.text_findings`."""

    def __post_init__(self) -> None:
        if not self.given:
            raise ValueError("needs at least one matcher")
        details = _FLAG_DETAILS & self.given
        if details and not self.flag:
            raise ValueError(f"`{min(details)}` needs a `flag`")

    @cached_property
    def given(self) -> frozenset[str]:
        """The names of the matchers that the rule has."""
        return frozenset(name for name in self.__struct_fields__ if getattr(self, name) is not None)


class Fix(FileValue, kw_only=True):
    """A change after which the launch does what its author meant; exactly one. `--fix` applies it."""

    drop: Literal["true"] | None = None
    """Remove the match: it does nothing, or repeats something."""
    rename: str | None = None
    """Another flag with the same value."""
    set: str | None = None
    """Another value of the same flag."""
    separate: Literal["true"] | None = None
    """A flag and its value that are one word, with `=` between them."""
    join: Literal["true"] | None = None
    """Flags that the command before them was meant to have: end its lines with backslashes."""
    hyphens: Literal["true"] | None = None
    """Hyphens in place of a typographic dash."""

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in self.__struct_fields__) != 1:
            raise ValueError(f"needs exactly one of {', '.join(self.__struct_fields__)}")


class Rule(FileValue, kw_only=True):
    id: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9.]+)+$", max_length=1000)]
    level: Level
    says: str
    """What happens. May contain {name}, {value}, {image} and {model} of the match."""
    when: When
    also: tuple[When, ...] = ()
    unless: tuple[When, ...] = ()
    instead: str | None = None
    fix: Fix | None = None
    confidence: Confidence
    sources: Sources
    hits: Annotated[tuple[str, ...], NOT_EMPTY]
    misses: Annotated[tuple[str, ...], NOT_EMPTY]


class RulesSchema(FileValue, kw_only=True):
    rules: tuple[Rule, ...]


def read_rules(file: YamlFile) -> tuple[Rule, ...]:
    """Parse a rule file. Raise InvalidFile with the lines of its mistakes."""
    parsed = file.convert(RulesSchema).rules
    seen: set[str] = set()
    for index, rule in enumerate(parsed):
        if rule.id in seen:
            raise file.mistake(("rules", index, "id"), f"there are two rules `{rule.id}`")
        seen.add(rule.id)
    return parsed


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule of the package."""
    return tuple({rule.id: rule for _, parsed in rule_files() for rule in parsed}.values())


def rule_files() -> Iterator[tuple[str, tuple[Rule, ...]]]:
    """The rule files of the package, each with its rules."""
    for path in shipped_data.names("rules"):
        yield path, read_rules(shipped_data.yaml_file(path))


def explain(rule_id: str) -> Rule:
    for rule in rules():
        if rule.id == rule_id:
            return rule
    raise UsageError(
        f"there is no rule `{rule_id}`", next="firesteel check FILE, which names the rules it finds"
    )
