"""What a service file came to: the values that the gateway holds, and their way through a line of JSON.

A child process (`loader.py`) reads, plans and writes the line; the gateway has neither YAML nor a planner and
takes it from there. What is not such a line is a `BadLine`, whatever it is instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from firesteel.gateway.interfaces import CancelPolicy

T = TypeVar("T")


class InvalidMessage(ValueError):
    """A child said something that it does not say."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason, as a FiresteelError has it."""

    what: str
    next: str = ""
    kind: str = "failed"

    def __str__(self) -> str:
        return f"{self.what}. To try: {self.next}" if self.next else self.what


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model of the file: ours to start, or outside, at URLs of somebody else's."""

    name: str
    identity: str
    """The same for as long as nothing changes that would need another start."""
    urls: tuple[str, ...]
    """Without `/v1`. One for ours."""
    bytes: int = 0
    """Planned; of an outside one what the file says."""
    load_s: float = 60.0
    """Of a whole load, as the last one took: started, warmed and proved. Else of the start as planned."""
    is_outside: bool = False
    engine: str | None = None
    context: int | None = None
    users: int | None = None
    pinned: bool = False
    preload: bool = False
    ttl_s: float | None = None
    cancel: CancelPolicy = "cancel"
    route: Literal["least-busy", "prefix"] = "least-busy"
    model: str | None = None
    """What an outside server calls it; None: as here."""
    key: str | None = None
    """Where an outside server's key is: a variable, or a path."""
    aliases: tuple[str, ...] = ()
    """What else it is asked for by; no model's name, and no other's alias."""
    ask: Mapping[str, Any] = field(default_factory=dict)
    """For `loader load`: what to start, in the file's own words."""
    why_not: Reason | None = None
    """Why it cannot be served: it does not fit, a rule stops it, no such recipe."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """A whole file."""

    path: str
    listen: str
    ceiling_bytes: int
    keep_free_bytes: int
    models: tuple[ModelConfig, ...]
    never_together: tuple[tuple[str, ...], ...] = ()
    queue: int = 256
    max_wait_s: float = 300.0
    min_dwell_s: float = 120.0

    @property
    def named(self) -> dict[str, ModelConfig]:
        return {model.name: model for model in self.models}

    @property
    def aliased(self) -> dict[str, str]:
        """Alias -> name."""
        return {alias: model.name for model in self.models for alias in model.aliases}


@dataclass(frozen=True, slots=True)
class RunningModel:
    """A model that runs, and was proved."""

    url: str
    bytes: int | None
    bytes_are: str = "planned"
    """`host`: what the host lost by it; `process`: what its processes hold; `planned`: nobody measured."""
    key: str | None = None
    """Of an engine that answers only to whoever has it."""
    is_found: bool = False
    """It ran before anybody here started it."""
    load_s: float | None = None
    """What the whole load took, downloads left out; None of a found one."""


def read_reason(said: object) -> Reason:
    got = _fields(Reason, said)
    return Reason(*(str(got.get(name, "")) for name in ("what", "next", "kind")))


def read_running_model(said: object) -> RunningModel:
    return _made(RunningModel, _fields(RunningModel, said))


def read_service_config(said: object) -> ServiceConfig:
    got = _fields(ServiceConfig, said)
    models = got.get("models")
    apart = got.get("never_together", ())
    if not isinstance(models, list) or not isinstance(apart, (list, tuple)):
        raise InvalidMessage("no list of models")
    got["models"] = tuple(_served(each) for each in models)
    got["never_together"] = tuple(tuple(group) for group in apart)
    return _made(ServiceConfig, got)


def _served(said: object) -> ModelConfig:
    got = _fields(ModelConfig, said)
    got["urls"] = tuple(got.get("urls", ()))
    got["aliases"] = tuple(got.get("aliases", ()))
    got["why_not"] = read_reason(got["why_not"]) if got.get("why_not") else None
    return _made(ModelConfig, got)


def _fields(kind: type, said: object) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise InvalidMessage(f"not a {kind.__name__}: {said!r:.100}")
    return {each.name: said[each.name] for each in fields(kind) if each.name in said}


def _made(kind: type[T], got: dict[str, Any]) -> T:
    try:
        return kind(**got)
    except TypeError as error:
        raise InvalidMessage(str(error)) from None
