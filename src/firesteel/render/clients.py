"""Clients that people point at a service (OpenCode, Claude Code, Codex and others), and their settings.

`load_client` says where a client has its configuration and in which format; that is data (`data/clients`),
each with its source. `settings` gives what it must know about an endpoint. An unknown limit is left out,
never guessed: the client then uses its own default. API keys are named by their variable and never written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, Literal
from urllib.parse import urlsplit

from firesteel import shipped_data
from firesteel.errors import UsageError
from firesteel.facts.evidence import Evidence, Sources
from firesteel.values import FileValue, Value

Format = Literal["json", "toml", "yaml", "yaml-list", "env"]
Option = Literal["quiet", "stable-prompt"]
_ORDER = (
    "opencode", "claude-code", "codex", "continue", "qwen-code", "cline", "pi", "goose", "aider", "llm",
    "zed", "open-webui", "openai",
)  # fmt: skip


class ConfigFolder(FileValue, kw_only=True):
    variable: str
    """The environment variable that moves the folder."""
    default: str


class Life(FileValue, kw_only=True):
    """What a client takes for a sign of life while it waits for the first event of a stream."""

    counts: Literal["bytes", "events"]
    """Bytes: comments keep it. Events: they do not."""
    leaves_after: int | None = None
    """Seconds without one; None: none was seen, up to the wait that was tried."""
    tried: int
    """Seconds of loading that it was seen to survive, with our settings."""
    versions: tuple[str, ...]
    agents: tuple[str, ...] = ()
    """The names before the version in its `User-Agent`."""
    event: str | None = None
    """The type of an event that these versions were seen to ignore, and to take for a sign of life."""


class OwnPrompt(FileValue, kw_only=True):
    """What a client sends besides the user's words: system prompt, tools, reminders."""

    characters: int
    tools: int
    versions: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Estimated: 4 characters each."""
        return self.characters // 4


class SettingTemplate(FileValue, kw_only=True):
    """`{url}`, `{model}` and so on in a value are those of the endpoint (`_values`); what needs one that is
    not known is left out. `{true}` and `{1800000}` are no texts."""

    path: tuple[str, ...]
    value: Any
    action: Literal["set", "keep", "list"] = "set"


class NormalizerExample(FileValue, kw_only=True):
    before: str
    after: str


class KnownNormalizer(FileValue, kw_only=True):
    """What the gateway can take out of this client's prompts (`gateway/http/normalize.py`)."""

    name: str
    says: str
    """What it is, why it changes, and that the model does not need it."""
    since: str
    until: str
    """The first and the last version that it was seen in, as `sources` say."""
    kind: Literal["chat", "message", "response"]
    pattern: str
    replacement: str = ""
    never: tuple[str, ...]
    """Hosts of the vendor, whose API needs it."""
    hits: tuple[NormalizerExample, ...]
    misses: tuple[str, ...]


class OfferedSettings(FileValue, kw_only=True):
    """Written only if they are asked for."""

    says: str
    """What they do, and what the user or the model loses by them."""
    settings: tuple[SettingTemplate, ...]


class KnownClient(FileValue, kw_only=True):
    title: str
    speaks: Literal["chat", "messages", "responses"]
    """Which of the engine's APIs: OpenAI's chat completions, Anthropic's messages, OpenAI's responses."""
    format: Format
    folder: ConfigFolder | None = None
    """None: it has only environment variables, no file."""
    files: tuple[str, ...] = ()
    """The files that it reads; the first that exists is changed."""
    new_file: str | None = None
    """The file to create where none exists."""
    life: Life | None = None
    """None: not tried."""
    prompt: OwnPrompt | None = None
    settings: tuple[SettingTemplate, ...] = ()
    offers: Mapping[Option, OfferedSettings] = {}
    normalizers: tuple[KnownNormalizer, ...] = ()
    cures: Mapping[str, str] = {}
    """By cause (`gateway/prompt_causes.py`) of a prompt that is read again: what prevents it."""
    asks: tuple[str, ...] = ()
    """Public names that it was seen to ask for."""
    run: str | None = None
    """How it is started with these settings, if not by its name alone."""
    notes: tuple[str, ...] = ()
    untried: bool = False
    """It was never run with these settings."""
    sources: Sources

    @property
    def source(self) -> Evidence:
        return self.sources[0]


def client_names() -> tuple[str, ...]:
    return _ORDER


@cache
def load_client(name: str) -> KnownClient:
    return shipped_data.load(f"clients/{name}.yaml", KnownClient)


def keepalive_events() -> dict[str, str]:
    """By the first word of a `User-Agent`; of versions that were seen to accept the event, and no others."""
    lives = [life for name in client_names() if (life := load_client(name).life) and life.event]
    return {
        f"{agent}/{version}": str(life.event)
        for life in lives
        for agent in life.agents
        for version in life.versions
    }


def normalizers() -> Iterator[tuple[str, tuple[str, ...], KnownNormalizer]]:
    """With the name of the client, and its names in `User-Agent`."""
    for name in client_names():
        known = load_client(name)
        for each in known.normalizers:
            yield name, known.life.agents if known.life else (), each


def chosen_normalizers(names: Collection[str]) -> tuple[str, ...]:
    """Of the service file's `normalize`. Raises UsageError."""
    known = tuple(dict.fromkeys(name for name, _, _ in normalizers()))
    if unknown := sorted(set(names) - {*known, "all"}):
        raise UsageError(
            f"`normalize: [{unknown[0]}]` names no client that has normalizers",
            next=f"normalize: [{', '.join(known)}]",
        )
    return known if "all" in names else tuple(names)


def cures() -> dict[str, Mapping[str, str]]:
    """By the name of a client in its `User-Agent`, then by cause."""
    known = (load_client(name) for name in client_names())
    return {agent: each.cures for each in known if each.life and each.cures for agent in each.life.agents}


MAX_OUTPUT = 16_384
"""Our choice: engines limit an answer only by the context, clients want a number, and a quarter of the
context, at most this, leaves enough for the question."""


class ClientEndpoint(Value):
    url: str
    """Up to and including `/v1`."""
    model: str
    """The name under which the server offers it."""
    context: int | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None
    key: str | None = None
    """The environment variable with the API key; None: the server requires none."""
    provider: str = "firesteel"
    """What the client calls the endpoint."""
    requests: Mapping[str, Any] = {}
    """What every request should say, as in a request body: the recipe's settings."""

    @property
    def output(self) -> int | None:
        return None if self.context is None else min(MAX_OUTPUT, max(1, self.context // 4))

    @property
    def root(self) -> str:
        """Without `/v1`, which Anthropic's clients add themselves."""
        return self.url.removesuffix("/v1")

    @property
    def is_on_loopback(self) -> bool:
        return urlsplit(self.url).hostname in ("127.0.0.1", "::1", "localhost")


class SettingEdit(Value):
    """One value at one path."""

    path: tuple[str, ...]
    value: object
    action: Literal["set", "keep", "list", "drop"] = "set"
    """keep: set it only if it is missing. list: add an item to a list, or replace the one with its `name`.
    drop: remove it."""


class ClientSettings(Value):
    edits: tuple[SettingEdit, ...]
    notes: tuple[str, ...] = ()
    """What the file cannot do: a variable to export, an address to consider."""


def settings(client: str, endpoint: ClientEndpoint, options: Collection[Option] = ()) -> ClientSettings:
    """`options`: settings that are only offered, such as those that quiet telemetry."""
    known, values = load_client(client), _values(endpoint)
    if client in _CLIENTS:
        own = _CLIENTS[client](endpoint)
    else:
        own = ClientSettings((), (*_export(endpoint), *_unsaid(endpoint)))
    templates = [*known.settings, *(each for name in options for each in _offer(client, name).settings)]
    edits = [*own.edits]
    for template in templates:
        if (value := _filled(template.value, values)) is not None:
            path = tuple(str(_filled(name, values)) for name in template.path)
            edits.append(SettingEdit(path, value, template.action))
    return ClientSettings(tuple(edits), (*_about(known, endpoint, options), *own.notes))


def _offer(client: str, option: Option) -> OfferedSettings:
    known = load_client(client)
    if option not in known.offers:
        raise UsageError(f"{known.title} has no settings for --{option}", next=f"firesteel client {client}")
    return known.offers[option]


def _about(known: KnownClient, endpoint: ClientEndpoint, options: Collection[Option]) -> Iterator[str]:
    values = _values(endpoint)
    if known.untried:
        yield f"untried: {known.title} was never run with these settings here; they follow its documentation"
    if known.prompt and endpoint.context and endpoint.context < known.prompt.tokens + _LEAST_ROOM:
        yield (
            f"{endpoint.model} has {endpoint.context:,} tokens of context, and {known.title}"
            f" {known.prompt.versions[-1]} sends about {known.prompt.tokens:,} before your first word:"
            f" serve it with `context: {_round_up(known.prompt.tokens + 4 * _LEAST_ROOM)}` or more"
        )
    if known.run and (run := _filled(known.run, values)):
        yield f"run it as: {run}"
    yield from (text for note in known.notes if (text := _filled(note, values)))
    for name, offer in known.offers.items():
        yield offer.says if name in options else f"--{name}: {offer.says}"
    if known.asks and "quiet" not in options:
        yield f"on its own it asks for {', '.join(known.asks)}"


_LEAST_ROOM = 2048
"""Tokens for a question and an answer. Our choice."""


def _round_up(tokens: int) -> int:
    return -(-tokens // 8192) * 8192


def _values(endpoint: ClientEndpoint) -> Mapping[str, object]:
    """What templates may name."""
    return {
        "url": endpoint.url,
        "root": endpoint.root,
        "model": endpoint.model,
        "provider": endpoint.provider,
        "context": endpoint.context,
        "context_text": _text(endpoint.context),
        "output": endpoint.output,
        "output_text": _text(endpoint.output),
        "key": endpoint.key,
        "key_or_none": endpoint.key or "none",
        "secret": f"${endpoint.key}" if endpoint.key else "none",
        "effort": endpoint.requests.get("reasoning_effort"),
        "images": endpoint.images,
        "reasoning": endpoint.reasoning,
        "inputs": {None: None, True: ["text", "image"], False: ["text"]}[endpoint.images],
    }


_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_LITERAL = re.compile(r"\{(true|false|[0-9]+)\}")


def _filled(value: Any, values: Mapping[str, object]) -> Any:
    """None: it needs what is not known."""
    if isinstance(value, dict):
        filled = {key: _filled(inner, values) for key, inner in value.items()}
        return {key: inner for key, inner in filled.items() if inner is not None}
    if isinstance(value, list):
        return [inner for each in value if (inner := _filled(each, values)) is not None]
    if not isinstance(value, str):
        return value
    if literal := _LITERAL.fullmatch(value):
        return json.loads(literal[1])
    if whole := _PLACEHOLDER.fullmatch(value):
        return values[whole[1]]
    names = _PLACEHOLDER.findall(value)
    if any(values[name] is None for name in names):
        return None
    return _PLACEHOLDER.sub(lambda match: str(values[match[1]]), value)


def _without_none(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _unsaid(endpoint: ClientEndpoint, *carried: str) -> tuple[str, ...]:
    """What the client's file cannot say."""
    left = {name: value for name, value in endpoint.requests.items() if name not in carried}
    return (f"requests should say {json.dumps(left)}, which this client's file cannot",) if left else ()


def _export(endpoint: ClientEndpoint, variable: str | None = None) -> tuple[str, ...]:
    return (f"export {variable or endpoint.key} with the key",) if endpoint.key else ()


def _opencode(endpoint: ClientEndpoint) -> ClientSettings:
    inputs = {None: None, True: ["text", "image"], False: ["text"]}[endpoint.images]
    model = _without_none(
        name=endpoint.model,
        limit=_without_none(context=endpoint.context, output=endpoint.output) or None,
        tool_call=endpoint.tools,
        reasoning=endpoint.reasoning,
        attachment=endpoint.images,
        modalities={"input": inputs, "output": ["text"]} if inputs else None,
        options=dict(endpoint.requests) or None,
    )
    options = _without_none(baseURL=endpoint.url, apiKey=f"{{env:{endpoint.key}}}" if endpoint.key else None)
    prefix = ("provider", endpoint.provider)
    edits = (
        SettingEdit(("$schema",), "https://opencode.ai/config.json", "keep"),
        SettingEdit(("model",), f"{endpoint.provider}/{endpoint.model}"),
        SettingEdit((*prefix, "npm"), "@ai-sdk/openai-compatible"),
        SettingEdit((*prefix, "options"), options),
        SettingEdit((*prefix, "models", endpoint.model), model),
    )
    return ClientSettings(edits, _export(endpoint))


def _claude_code(endpoint: ClientEndpoint) -> ClientSettings:
    env = _without_none(
        ANTHROPIC_BASE_URL=endpoint.root,
        ANTHROPIC_MODEL=endpoint.model,
        ANTHROPIC_DEFAULT_OPUS_MODEL=endpoint.model,
        ANTHROPIC_DEFAULT_SONNET_MODEL=endpoint.model,
        ANTHROPIC_DEFAULT_HAIKU_MODEL=endpoint.model,
        CLAUDE_CODE_MAX_CONTEXT_TOKENS=_text(endpoint.context),
        CLAUDE_CODE_MAX_OUTPUT_TOKENS=_text(endpoint.output),
    )
    # A command that prints the key: without one, Claude Code asks for a login, and it repeats one that fails.
    missing = f"echo {endpoint.key}-is-not-exported"
    helper = f"printenv {endpoint.key} || {missing}" if endpoint.key else "echo no-key-needed"
    edits = [
        *(SettingEdit(("env", name), value) for name, value in env.items()),
        SettingEdit(("apiKeyHelper",), helper),
    ]
    note = "unset ANTHROPIC_AUTH_TOKEN and ANTHROPIC_API_KEY: they override it and are sent to this server"
    return ClientSettings(tuple(edits), (*_export(endpoint), note, *_unsaid(endpoint, "reasoning_effort")))


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _codex(endpoint: ClientEndpoint) -> ClientSettings:
    provider = _without_none(
        name=endpoint.provider, base_url=endpoint.url, env_key=endpoint.key, wire_api="responses"
    )
    edits = [SettingEdit(("model",), endpoint.model), SettingEdit(("model_provider",), endpoint.provider)]
    if endpoint.context:
        edits.append(SettingEdit(("model_context_window",), endpoint.context))
    prefix = ("model_providers", endpoint.provider)
    edits += [SettingEdit((*prefix, name), value) for name, value in provider.items()]
    if endpoint.key is None:
        edits.append(SettingEdit((*prefix, "env_key"), None, "drop"))
    return ClientSettings(tuple(edits), (*_export(endpoint), *_unsaid(endpoint, "reasoning_effort")))


_CONTINUE_SAMPLING = {
    "temperature": "temperature", "top_p": "topP", "top_k": "topK", "min_p": "minP",
    "presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty",
}  # fmt: skip


def _continue(endpoint: ClientEndpoint) -> ClientSettings:
    capabilities = [
        name for name, has in (("tool_use", endpoint.tools), ("image_input", endpoint.images)) if has
    ]
    limits = _without_none(contextLength=endpoint.context, maxTokens=endpoint.output)
    asked = endpoint.requests
    limits |= {name: asked[key] for key, name in _CONTINUE_SAMPLING.items() if key in asked}
    extra = {key: value for key, value in asked.items() if key not in _CONTINUE_SAMPLING}
    model = _without_none(
        name=f"{endpoint.model} ({endpoint.provider})",
        provider="openai",
        model=endpoint.model,
        apiBase=endpoint.url,
        apiKey=f"${{{{ secrets.{endpoint.key} }}}}" if endpoint.key else None,
        roles=["chat", "edit", "apply"],
        capabilities=capabilities or None,
        defaultCompletionOptions=limits or None,
        requestOptions={"extraBodyProperties": extra} if extra else None,
    )
    edits = (
        SettingEdit(("name",), "firesteel", "keep"),
        SettingEdit(("version",), "1.0.0", "keep"),
        SettingEdit(("schema",), "v1", "keep"),
        SettingEdit(("models",), model, "list"),
    )
    notes = (f"write {endpoint.key}=... into ~/.continue/.env, and chmod 600 it",) if endpoint.key else ()
    return ClientSettings(edits, notes)


def _zed(endpoint: ClientEndpoint) -> ClientSettings:
    capabilities = _without_none(tools=endpoint.tools, images=endpoint.images)
    model = _without_none(
        name=endpoint.model,
        display_name=endpoint.model,
        max_tokens=endpoint.context or 8192,
        max_output_tokens=endpoint.output,
        capabilities={**capabilities, "parallel_tool_calls": False, "prompt_cache_key": False}
        if capabilities
        else None,
    )
    value = {"api_url": endpoint.url, "available_models": [model]}
    variable = re.sub(r"\W", "_", endpoint.provider).upper() + "_API_KEY"
    notes = _export(endpoint, variable) or (
        f"Zed needs a key even if the server requires none: export {variable}=none",
    )
    if endpoint.context is None:
        notes += ("the context is unknown: `max_tokens`, which Zed needs, is set to 8,192",)
    edits = [SettingEdit(("language_models", "openai_compatible", endpoint.provider), value)]
    return ClientSettings(tuple(edits), (*notes, *_unsaid(endpoint)))


def _open_webui(endpoint: ClientEndpoint) -> ClientSettings:
    edits = (
        SettingEdit(("ENABLE_OPENAI_API",), "true"),
        SettingEdit(("OPENAI_API_BASE_URLS",), endpoint.url),
        SettingEdit(("OPENAI_API_KEYS",), f"${endpoint.key}" if endpoint.key else "none"),
    )
    notes = ["it reads these at its first start; later change them on its settings page (Admin, Connections)"]
    if endpoint.is_on_loopback:
        notes.append("a container reaches 127.0.0.1 of the host only with --network host")
    return ClientSettings(edits, (*notes, *_export(endpoint), *_unsaid(endpoint)))


def _openai(endpoint: ClientEndpoint) -> ClientSettings:
    key = f"${endpoint.key}" if endpoint.key else "none"
    edits = (SettingEdit(("OPENAI_BASE_URL",), endpoint.url), SettingEdit(("OPENAI_API_KEY",), key))
    limits = f", {endpoint.context:,} tokens of context" if endpoint.context else ""
    notes = (f"the model is called {endpoint.model}{limits}", *_export(endpoint), *_unsaid(endpoint))
    return ClientSettings(edits, notes)


_CLIENTS: Mapping[str, Callable[[ClientEndpoint], ClientSettings]] = {
    "opencode": _opencode,
    "claude-code": _claude_code,
    "codex": _codex,
    "continue": _continue,
    "zed": _zed,
    "open-webui": _open_webui,
    "openai": _openai,
}
