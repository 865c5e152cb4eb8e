"""The service file as the gateway uses it.

A child process (`loader/job.py`) reads the file, plans its models and sends these values as one line of JSON;
`values.from_json` checks them. The gateway itself loads neither YAML nor the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import field

from firesteel.gateway.interfaces import CancelPolicy, ServerApiName, Timeouts
from firesteel.service_settings import AlertEntry
from firesteel.units import MIB, Band
from firesteel.values import Value, replace


class Reason(Value):
    """The parts of a FiresteelError."""

    what: str
    next: str = ""
    kind: str = "failed"

    def __str__(self) -> str:
        return f"{self.what}. Try: {self.next}" if self.next else self.what


class PlannedFigures(Value):
    """What the plan expects of a model that runs; a figure outside is worth a look."""

    memory_bytes: Band
    decode_tokens_per_s: Band | None = None
    """Of one stream: the lowest with all users at once, the highest with one user."""
    total_tokens_per_s: Band | None = None
    """Of all streams, when all users send requests."""
    speculates: bool = False
    prefill_tokens_per_s: float | None = None
    """Of the prompt's tokens that are not cached, as expected."""
    cache_block_tokens: int = 1
    """Only whole blocks of so many tokens are cached; more than the context: none are."""


class ModelParameters(Value):
    """What is added to requests, changed and taken out of them; values as JSON has them."""

    defaults: Mapping[str, Any] = {}
    """Where the client gives none. None: not even the recipe's."""
    fixed: Mapping[str, Any] = {}
    """Whatever the client gives."""
    strip: tuple[str, ...] = ()
    max_tokens: int | None = None
    """The most that a request gets, under any of the names that it has."""
    context: int | None = None
    """The longest prompt in tokens, estimated from its length."""
    recipe: Mapping[str, Any] = {}
    """Defaults that the recipe knows: sampling, thinking."""
    recipe_for_tools: Mapping[str, Any] = {}
    """The same for requests with tools."""
    served_name: str | None = None
    """What the engine calls an adapter; None: as the model."""

    @property
    def edits_body(self) -> bool:
        return bool(self.defaults or self.fixed or self.strip or self.max_tokens or self.recipe)

    def overridden(self, other: ModelParameters) -> ModelParameters:
        """These, with those of an alias over them."""
        return replace(
            self,
            defaults={**self.defaults, **other.defaults},
            fixed={**self.fixed, **other.fixed},
            strip=tuple(dict.fromkeys((*self.strip, *other.strip))),
            max_tokens=self.max_tokens if other.max_tokens is None else other.max_tokens,
            context=self.context if other.context is None else other.context,
            served_name=other.served_name,
        )


class ModelConfig(Value):
    """One model of the file: ours to start, or running outside firesteel at its own URLs."""

    name: str
    identity: str
    """Changes with anything that needs a restart; what runs is then stale. Other changes apply in place."""
    urls: tuple[str, ...]
    """Without `/v1`. A model of ours has one if the file gives its port."""
    bytes: int = 0
    """Planned; for an outside model the size in the file. The measured size replaces it once it has run with
    the same identity."""
    load_s: float = 60.0
    """Duration of the last load, with warm-up and verification; before the first load the planned
    start-up."""
    is_outside: bool = False
    """Never ours to start or stop, but its bytes count."""
    start: str = ""
    """What to do where an outside model does not answer."""
    engine: str | None = None
    context: int | None = None
    users: int | None = None
    pinned: bool = False
    preload: bool = False
    ttl_s: float | None = None
    cancel: CancelPolicy = "cancel"
    route: Literal["least-busy", "prefix"] = "least-busy"
    model: str | None = None
    """The name on an outside server; None: the same."""
    key: str | None = None
    """Where to find an outside server's key: an environment variable, or a path."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    speaks: tuple[ServerApiName, ...] = ()
    """Of an outside server; empty: everything that clients send."""
    upstream: bool = False
    """All paths of its server can be reached, under `/upstream/NAME/`."""
    aliases: tuple[str, ...] = ()
    """Other names for it; unique among all names and aliases."""
    fallbacks: Mapping[str, str] = {}
    """The model or alias that serves its requests instead, by reason (`FallbackReason`)."""
    parameters: ModelParameters = field(default_factory=ModelParameters)
    alias_parameters: Mapping[str, ModelParameters] = {}
    """Of the aliases that have their own, with the model's in them."""
    ask: Mapping[str, Any] = {}
    """For `loader load`: what to start, as the file has it."""
    planned: PlannedFigures | None = None
    """None for an outside model."""
    why_not: Reason | None = None
    """Why it cannot be served: it does not fit, a rule stops it, there is no such recipe."""


class Normalizer(Value):
    """What is taken out of the prompts of a client (`http/normalize.py`)."""

    client: str
    name: str
    agents: tuple[str, ...]
    """Its names in `User-Agent`."""
    since: str
    until: str
    """The first and the last version that it was seen in."""
    kind: str
    """Of the route."""
    pattern: str
    """Of the body as it is sent; the first place counts."""
    replacement: str
    never: tuple[str, ...]
    """Hosts of the vendor."""


class ServiceConfig(Value):
    """The whole file."""

    path: str
    listen: str
    ceiling_bytes: int
    keep_free_bytes: int
    models: tuple[ModelConfig, ...]
    never_together: tuple[tuple[str, ...], ...] = ()
    queue: int = 256
    max_wait_s: float = 300.0
    min_dwell_s: float = 120.0
    gateway_bytes: int = 128 * MIB
    """Bodies and buffers of all clients together."""
    alerts: AlertEntry = AlertEntry()
    cors: tuple[str, ...] = ()
    """Origins of web pages that may use the models (`gateway/http/access.py`)."""
    disk_folders: tuple[str, ...] = ()
    """Where weights and logs are."""
    keepalives: Mapping[str, str] = {}
    """By `User-Agent` (its first word): the event that keeps this version of a client, which leaves
    if it gets only comments."""
    normalizers: tuple[Normalizer, ...] = ()
    normalize: tuple[str, ...] = ()
    """The clients whose normalizers are on for every request."""
    cures: Mapping[str, Mapping[str, str]] = {}
    """By client (the name in its `User-Agent`) and by cause: what keeps its prompt the same."""

    @property
    def by_name(self) -> dict[str, ModelConfig]:
        return {model.name: model for model in self.models}

    @property
    def context_limits(self) -> dict[str, int]:
        """By name and alias: the longest prompt, of those that have a limit."""
        found = {
            name: model.alias_parameters.get(name, model.parameters).context
            for model in self.models
            for name in (model.name, *model.aliases)
        }
        return {name: context for name, context in found.items() if context is not None}

    @property
    def aliased(self) -> dict[str, str]:
        """Alias -> model name. Ollama's clients append `:latest` to a name without a tag."""
        latest = {f"{model.name}:latest": model.name for model in self.models}
        return latest | {alias: model.name for model in self.models for alias in model.aliases}


class RunningModel(Value):
    """A model that runs and was verified."""

    url: str
    bytes: int | None
    bytes_are: str = "planned"
    """`host`: what the host has less; `process`: what its processes hold; `planned`: not measured."""
    key: str | None = None
    """Of an engine that requires one."""
    is_found: bool = False
    """It was running already."""
    load_s: float | None = None
    """Duration of the load without downloads; None if it was running already."""
