"""The service file: which models one endpoint has, in the user's own names, and what starts for them.

    listen: 127.0.0.1:8080
    memory: {ceiling: 110GiB}
    queue: {size: 256, max_wait: 5m, min_dwell: 2m}
    models:
      coder: {recipe: qwen3.6-35b-a3b-nvfp4, context: 131072, pinned: true}
      small: {recipe: gpt-oss-20b, ttl: 10m}
      other: {url: "http://127.0.0.1:9000", memory: 20GiB}
    never_together: [[small, other]]

    file = read_service_file("models.yaml", text)
    asks(file)                                      {"coder": Ask(...), "small": Ask(...)}

Replicas of one model: `{urls: [...], route: prefix, key: PAIR_KEY}`. `aliases: ["gpt-oss:20b"]` are other
names that a model answers to, and `parameters` changes its requests (`service_settings.py`). `quick: smollm2`
is short for `{recipe: smollm2}`, and a list in place of `models` has recipes, each by its own name. Several
hosts: `nodes: 2` serves one model by two of them together, and with `hosts: {spark2: 192.168.100.11}`
`node: spark2` serves it there; `node: [spark1, spark2]` are replicas.

`up -f`, `ps -f`, `render -f`, `down -f` and `serve` read it. Pure: text in, values out; the catalog and the
planner decide whether a recipe exists and fits. Keys are compared with one another after the schema
has accepted the file (`_faults`), so that each mistake has its line. The file never contains an API key:
`key` names the variable or the file that has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Annotated, Literal, get_args
from zlib import crc32

from msgspec import Meta

from firesteel.errors import UsageError
from firesteel.launch import LOOPBACK, AdapterReference, Ask, Runtime
from firesteel.service_settings import (
    VARIABLE,
    Address,
    AlertEntry,
    Aliases,
    Bytes,
    Fallback,
    ParameterEntry,
    Place,
    Seconds,
    Words,
    alert_faults,
    fallback_faults,
    parameter_faults,
    parse_origins,
    shaped,
    wrong_url,
)
from firesteel.service_settings import size as parse_bytes
from firesteel.units import MIB
from firesteel.values import Expand, FileValue, KeyPath, PositiveInt, Value, YamlFile, replace


class NodeModel(Value):
    """A model that other hosts serve, each by itself."""

    ask: Ask
    addresses: dict[str, str]
    """By node."""

    @property
    def has_here(self) -> bool:
        """This host is one of them."""
        return LOOPBACK in self.addresses.values()

    @property
    def urls(self) -> tuple[str, ...]:
        hosts = (f"[{address}]" if ":" in address else address for address in self.addresses.values())
        return tuple(f"http://{host}:{self.ask.port}" for host in hosts)


_HEALTH = re.compile(r"/[!-~]{0,199}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_NOT_OURS = ("route", "key", "context", "users", "runtime", "engine_path")


def command_faults(name: str, entry: ModelEntry) -> Iterator[tuple[tuple[str, ...], str]]:
    here, words = ("models", name), entry.cmd or ("",)
    if not words[0] or any("\0" in word for word in words):
        yield (*here, "cmd"), f"`{name}`: `cmd` begins with no program, or has a NUL in it"
    if entry.health is not None and not _HEALTH.match(entry.health):
        yield (*here, "health"), f"`{name}`: `health` is a path on the server; write it like `/health`"
    for variable, value in entry.env.items():
        if not _VARIABLE.match(variable) or "\0" in value:
            what = f"`{name}`: `{variable[:60]}` cannot be a variable; write it like `MODEL_DIR: /data`"
            yield (*here, "env", variable), what
    for key in _NOT_OURS:
        if getattr(entry, key) is not None:
            yield (*here, key), f"`{name}`: a `cmd` has no `{key}`"
    if entry.memory is None:
        yield here, f"`{name}`: a `cmd` needs `memory`, how much it takes; write it like 4GiB"
    if entry.port is None and not any("${PORT}" in word for word in (*words, *entry.env.values())):
        yield here, f"`{name}`: `cmd` has no ${{PORT}}, so that its `port` must be given"


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_NOT_A_NAME = "is not a valid name: letters, digits, dots, dashes, at most 63"
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}\Z")


def name_faults(models: Mapping[str, ModelEntry]) -> Iterator[tuple[Place, str]]:
    """Each name must mean one model."""
    whose: dict[str, str] = {}
    for name, entry in models.items():
        for adapter in entry.adapters:
            here = ("models", name, "adapters", adapter)
            if not entry.recipe:
                yield here, f"`{name}`: `adapters` are for a `recipe`"
            elif not NAME.match(adapter):
                yield (
                    here,
                    f"`{name}`: `{adapter[:80]}` {_NOT_A_NAME}",
                )
            elif adapter in models or adapter in entry.aliases or adapter in whose:
                yield here, f"`{name}`: the adapter `{adapter}` has the name of another model here"
            whose.setdefault(adapter, name)
        for alias, parameters in entry.aliases.items():
            here = ("models", name, "aliases", alias)
            yield from parameter_faults(here, alias, parameters)
            if not _ALIAS.match(alias):
                yield here, f"`{name}`: `{alias[:80]}` cannot be asked for; write it like `gpt-oss:20b`"
            elif alias in models:
                yield here, f"`{name}`: the alias `{alias}` is the name of a model here"
            elif alias in whose:
                yield here, f"`{name}`: the alias `{alias}` is given already, to `{whose[alias]}`"
            whose.setdefault(alias, name)


MAX_MODELS = 100
MIN_BUFFER_BYTES = 8 * MIB
MAX_REPLICAS = 32
MAX_NODES = 8
MAX_ADAPTERS = 32

Route = Literal["least-busy", "prefix"]
Cancel = Literal["cancel", "drain"]
ServerApi = Literal["chat", "messages", "responses"]


def _buffer_size(text: object) -> object:
    size = parse_bytes(text)
    if isinstance(size, int) and size < MIN_BUFFER_BYTES:
        raise ValueError("is too small for a single request; write at least 8MiB")
    return size


def _apis(value: object) -> object:
    """`chat` is short for `[chat]`."""
    apis = [value] if isinstance(value, str) else value
    if not isinstance(apis, list) or not apis or not set(map(str, apis)) <= set(get_args(ServerApi)):
        raise ValueError("is of chat, messages (Anthropic) and responses; write it like `speaks: chat`")
    return apis


def _entry(value: object) -> object:
    """`smollm2` is short for `{recipe: smollm2}`."""
    if value is None or isinstance(value, list):
        raise ValueError("needs a recipe; write it like `small: smollm2` or `small: {recipe: smollm2}`")
    return {"recipe": value} if isinstance(value, str) else value


def _models(value: object) -> object:
    """`[smollm2, org/Repo]`: each by its own name."""
    if isinstance(value, (dict, list)) and not 0 < len(value) <= MAX_MODELS:
        has = "has no model" if not value else f"has more than {MAX_MODELS} models"
        raise ValueError(f"{has}; write it like `models: {{small: smollm2}}`")
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("gives each model its name; write it like `models: {small: smollm2}`")
    named = {each.rpartition("/")[2]: each for each in value}
    if len(named) < len(value):
        raise ValueError("has a name twice; write it like `models: {one: smollm2, two: smollm2}`")
    return named


Urls = Annotated[
    tuple[str, ...],
    Meta(min_length=1, max_length=MAX_REPLICAS),
    shaped(list, "is a list", 'urls: ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]'),
]


def _names(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _host_address(text: object) -> object:
    try:
        return str(ip_address(text)) if isinstance(text, str) else text
    except ValueError:
        raise ValueError("is not an address; write it like `hosts: {spark2: 192.168.100.11}`") from None


Nodes = Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_NODES), Expand(_names)]
HostAddress = Annotated[str, Expand(_host_address)]


class MemorySettings(FileValue, kw_only=True):
    ceiling: Bytes | None = None
    """All models together; without it, what the host can give."""
    gateway: Annotated[PositiveInt, Expand(_buffer_size)] = 128 * MIB
    """Requests and responses that the gateway holds for all clients together; beyond it they wait or get
    503. No body may be longer than half of it."""


class QueueSettings(FileValue, kw_only=True):
    """Whom the gateway lets wait, and for how long. A load on a Spark takes 2 to 15 minutes."""

    size: Annotated[int, Meta(ge=1, le=10_000)] = 256
    """Requests that may wait, all models together: a house full of agents, and little memory."""
    max_wait: Seconds = 300
    """From then on a waiter's model is owed its turn. About a load's own time: with less, a host that is
    asked for two models in turns would load for most of the day; with more, people give up."""
    min_dwell: Seconds = 120
    """How long a model stays after its load even if others wait, so that the load pays."""


class TimeoutSettings(FileValue, kw_only=True):
    """How long a server may be silent before its request fails with 504."""

    first_byte: Seconds = 600
    """Of a stream, until its first byte: the time for the prompt."""
    gap: Seconds = 300
    """Between two bytes of a response."""
    answer: Seconds = 3600
    """Of a response that is not streamed, until its first byte: all of it is generated before."""


class ModelEntry(FileValue, kw_only=True):
    """One model: started by us from a `recipe` or by a `cmd`, or running already at a `url` or several."""

    recipe: str | None = None
    cmd: Annotated[Words, Meta(min_length=1)] | None = None
    """A server of the user's own, started without a shell; `${PORT}` in it becomes its port."""
    health: Annotated[str, Meta(max_length=200)] | None = None
    """Of a `cmd`: the path that answers 200 when it is ready; `/health` by default."""
    env: dict[str, Annotated[str, Meta(max_length=4096)]] = {}
    """Variables of a `cmd`."""
    url: str | None = None
    urls: Urls | None = None
    """Replicas: servers of the same model."""
    route: Route | None = None
    """Among replicas: the least busy, or the one that has seen how the prompt begins."""
    model: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """What the server at a URL calls it, where that is not the name here."""
    key: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """Where the API key of a server at a URL is: a variable's name, or the path of a file that holds it."""
    speaks: Annotated[tuple[ServerApi, ...], Expand(_apis)] = ()
    """What a server at a URL speaks, if not everything: requests in other APIs are translated."""
    upstream: bool = False
    """Of a `cmd` or a URL: all paths of its server can be reached, under `/upstream/NAME/`."""
    aliases: Aliases = {}
    """What else it answers to: clients ask for `gpt-oss:20b`, but a name is a folder's and docker's too. Each
    may have its own parameters."""
    adapters: Annotated[
        dict[str, Annotated[str, Meta(min_length=1, max_length=4096)]],
        Meta(max_length=MAX_ADAPTERS),
        shaped(dict, "has a path for each", "adapters: {polite: /data/polite-lora}"),
    ] = {}
    """LoRA of a `recipe`: what clients ask for, and a PEFT folder, a GGUF, or a Hub id that was pulled."""
    despite: Annotated[tuple[str, ...], Meta(max_length=50)] = ()
    """Checks of `audit` that do not stop a checkpoint."""
    parameters: Annotated[
        ParameterEntry, shaped(dict, "is a map of settings", "parameters: {defaults: {temperature: 0.6}}")
    ] = ParameterEntry()
    """What is added to its requests, changed in them and taken out of them."""
    fallback: Fallback | None = None
    """The model that serves its requests when it cannot."""
    context: PositiveInt | None = None
    users: PositiveInt | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    memory: Bytes | None = None
    """What a model at a URL takes; ours are planned."""
    runtime: Runtime | None = None
    """`native`: an engine that is installed on this machine, in no container."""
    engine_path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """That engine: its program, environment or build folder. Without it, it is looked for."""
    nodes: Annotated[int, Meta(ge=2, le=MAX_NODES)] | None = None
    """How many hosts serve it together: this one and nodes of `firesteel cluster`."""
    fallback_recipe: str | None = None
    """With `nodes`: the recipe that this host serves alone while another one is lost."""
    node: Nodes | None = None
    """Served by that host of `hosts`; by each of several, as replicas."""
    pinned: bool = False
    """Never evicted."""
    ttl: Seconds | None = None
    """Unused for this long, it is stopped."""
    preload: bool = False
    """Loaded when the gateway starts; it may be evicted later, unlike a pinned one."""
    cancel: Cancel = "cancel"
    """A client that goes: its request is cancelled, or (`drain`, for engines that a cancel harms) let run."""
    timeouts: Annotated[
        TimeoutSettings, shaped(dict, "is a map of settings", "timeouts: {first_byte: 10m, gap: 5m}")
    ] = TimeoutSettings()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it already runs; empty for a model that firesteel starts."""
        return self.urls or ((self.url,) if self.url else ())


Group = Annotated[
    tuple[str, ...], shaped(list, "is a list of groups", "never_together: [[coder, small], [coder, big]]")
]


class ServiceFile(FileValue, kw_only=True):
    hosts: Annotated[
        dict[str, HostAddress], shaped(dict, "has an address for each", "hosts: {spark2: 192.168.100.11}")
    ] = {}
    """Nodes of `firesteel cluster`, and the address of each for the gateway; this host has 127.0.0.1."""
    listen: Address = "127.0.0.1:8080"
    memory: Annotated[MemorySettings, shaped(dict, "has a ceiling", "memory: {ceiling: 100GiB}")] = (
        MemorySettings()
    )
    queue: Annotated[QueueSettings, shaped(dict, "is a map of settings", "queue: {size: 256}")] = (
        QueueSettings()
    )
    models: Annotated[
        dict[str, Annotated[ModelEntry, Expand(_entry)]],
        Expand(_models),
    ]
    never_together: tuple[Group, ...] = ()
    cors: Annotated[tuple[str, ...], Expand(parse_origins)] = ()
    """Web pages that may use the models: `off`, `loopback`, `any`, or a list of origins."""
    normalize: tuple[str, ...] = ()
    """Clients whose prompts lose what they write anew each time: `[claude-code]`, or `[all]`."""
    alerts: Annotated[AlertEntry, shaped(dict, "is a map of settings", "alerts: {webhook: ALERT_URL}")] = (
        AlertEntry()
    )


Fault = tuple[KeyPath, str]
"""Where in the file, and what is wrong there."""


def read_service_file(name: str, text: str) -> ServiceFile:
    written = YamlFile.parse(name, text)
    if not isinstance(written.value, dict):
        what = "the file is empty" if written.value is None else "the file is not a map"
        raise written.mistake((), f"{what}; write for example `models: {{small: smollm2}}`")
    file = written.convert(ServiceFile)
    if faults := list(_faults(file, is_listen_given="listen" in written.value)):
        raise written.mistakes(faults)
    return file


def _faults(file: ServiceFile, *, is_listen_given: bool) -> Iterator[Fault]:
    for name, entry in file.models.items():
        if not NAME.match(name):
            yield ("models", name), f"`{name}` {_NOT_A_NAME}"
        yield from _kind_faults(name, entry)
        yield from parameter_faults(("models", name, "parameters"), name, entry.parameters)
        for at, node in enumerate(entry.node or ()):
            if node not in file.hosts:
                yield ("models", name, "node", at), f"`{name}`: `{node}` is not in `hosts`"
        if LOOPBACK in (file.hosts.get(node) for node in entry.node or ()):
            for key in ("pinned", "preload", "ttl"):
                if getattr(entry, key):
                    what = "a replica on this host is started by `up -f` and stays"
                    yield ("models", name, key), f"`{name}`: {what}; it takes no `{key}`"
    yield from name_faults(file.models)
    targets = {
        alias: name
        for name, entry in file.models.items()
        for alias in (name, *entry.aliases, *entry.adapters)
    }
    for name, entry in file.models.items():
        yield from fallback_faults(name, entry.fallback, targets)
    yield from _port_faults(file, port_of(file.listen) if is_listen_given else None)
    yield from alert_faults(file.alerts)
    for at, group in enumerate(file.never_together):
        for place, name in enumerate(group):
            if name not in file.models:
                yield ("never_together", at, place), f"`never_together`: `{name}` is not in `models`"


def _kind_faults(name: str, entry: ModelEntry) -> Iterator[Fault]:
    here = ("models", name)
    if entry.cmd is None and (entry.health or entry.env):
        yield here, f"`{name}`: `health` and `env` are for a `cmd`"
    if sum(kind is not None for kind in (entry.recipe, entry.cmd, entry.url, entry.urls)) != 1:
        yield here, f"`{name}` needs `recipe` or `url` (`urls` for replicas) or `cmd`, one of them"
    elif entry.cmd is not None:
        yield from command_faults(name, entry)
    elif entry.recipe is not None:
        for key in ("route", "model", "key"):
            if getattr(entry, key) is not None and not (key == "route" and len(entry.node or ()) > 1):
                yield (*here, key), f"`{name}`: `{key}` is for a model at a `url`"
        if entry.fallback_recipe and not entry.nodes:
            yield (
                (*here, "fallback_recipe"),
                f"`{name}`: a `fallback_recipe` is for a model over several hosts, with `nodes`",
            )
        if entry.node:
            yield from _node_faults(name, entry)
        for key in ("speaks", "upstream"):
            if getattr(entry, key):
                yield (*here, key), f"`{name}`: `{key}` is for a `url` or a `cmd`; ours speak everything"
    else:
        yield from _outside_faults(name, entry)


def _node_faults(name: str, entry: ModelEntry) -> Iterator[Fault]:
    here = ("models", name)
    if entry.nodes:
        yield (
            (*here, "nodes"),
            f"`{name}`: several hosts serve it together (`nodes`), or each alone (`node`)",
        )
    if len(set(entry.node or ())) < len(entry.node or ()):
        yield (*here, "node"), f"`{name}`: `node` has a host twice"


def _outside_faults(name: str, entry: ModelEntry) -> Iterator[Fault]:
    here = ("models", name)
    if entry.url is not None and (wrong := wrong_url(entry.url)):
        yield (*here, "url"), f"`{name}`: `url` {wrong}"
    for at, url in enumerate(entry.urls or ()):
        if wrong := wrong_url(url):
            yield (*here, "urls", at), f"`{name}`: `urls` {wrong}"
        elif url in (entry.urls or ())[:at]:
            yield (*here, "urls", at), f"`{name}`: `urls` has this address twice"
    own = ("context", "users", "port", "ttl", "runtime", "engine_path", "nodes", "node", "fallback_recipe")
    for key in own:
        if getattr(entry, key) is not None:
            yield (*here, key), f"`{name}`: a model at a `url` has no `{key}`"
    for key in ("pinned", "preload"):
        if getattr(entry, key):
            yield (*here, key), f"`{name}`: a model at a `url` runs already; it takes no `{key}`"
    if entry.route and len(entry.addresses) < 2:
        yield (*here, "route"), f"`{name}`: `route` chooses among `urls`, and there is one"
    if entry.key and not ("/" in entry.key or VARIABLE.match(entry.key)):
        # Not repeated: what stands there may be the key.
        says = (
            "is neither the name of a variable, like CODER_KEY, nor a path; the key itself never stands here"
        )
        yield (*here, "key"), f"`{name}`: `key` {says}"


def _port_faults(file: ServiceFile, own: int | None) -> Iterator[Fault]:
    first: dict[int, str] = {}
    for name, entry in file.models.items():
        if entry.port and first.setdefault(entry.port, name) != name:
            yield ("models", name, "port"), f"`{name}` has the same port as `{first[entry.port]}`"
        elif entry.port and entry.port == own:
            yield ("models", name, "port"), f"`{name}` has the port of `listen`"


FIRST_PORT = 8000


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def asks(file: ServiceFile) -> dict[str, Ask]:
    """What this host starts, by name. One without a `port` takes a free one when it starts."""
    return {name: _ask(name, entry, entry.port) for name, entry in file.models.items() if _is_started(entry)}


def _is_started(entry: ModelEntry) -> bool:
    return entry.recipe is not None and not entry.node


def with_ports(file: ServiceFile, asks: Mapping[str, Ask]) -> dict[str, Ask]:
    """For what is written down before anything runs: the same with a port for each, in the order of the
    file."""
    taken = {*written_ports(file), *(ask.port for ask in asks.values())}
    free = (port for port in range(FIRST_PORT, FIRST_PORT + 1000) if port not in taken)
    return {name: replace(ask, port=ask.port or next(free)) for name, ask in asks.items()}


def on_nodes(file: ServiceFile) -> dict[str, NodeModel]:
    """What the hosts of the file start, by name. Each has a port that follows from its name: the gateway is
    on another host than the one that could find a free one."""
    taken = {*written_ports(file)}
    found: dict[str, NodeModel] = {}
    for name, entry in sorted(file.models.items()):
        if entry.recipe and entry.node:
            port = entry.port or FIRST_PORT + crc32(name.encode()) % 1000
            while entry.port is None and port in taken:
                port += 1
            taken.add(port)
            found[name] = NodeModel(_ask(name, entry, port), {node: file.hosts[node] for node in entry.node})
    return {name: found[name] for name in file.models if name in found}


def written_ports(file: ServiceFile) -> tuple[int, ...]:
    """Those of the models, and the gateway's own."""
    ports = (entry.port for entry in file.models.values())
    return (port_of(file.listen), *(port for port in ports if port is not None))


def _ask(name: str, entry: ModelEntry, port: int | None) -> Ask:
    return Ask(
        entry.recipe,
        entry.context,
        entry.users,
        port,
        name=name,
        sparks=entry.nodes,
        runtime="native" if entry.engine_path else entry.runtime,
        engine_path=entry.engine_path,
        adapters=tuple(AdapterReference(*each) for each in entry.adapters.items()),
        despite=entry.despite,
    )


def chosen(file: ServiceFile, names: tuple[str, ...]) -> dict[str, Ask]:
    """Those that were named, or all; none that may not meet."""
    known = asks(file)
    for name in names:
        if name not in known:
            raise UsageError(
                f"the service file starts no `{name}`; it has {', '.join(known)}",
                next=f"name {next(iter(known), 'one')}",
            )
    wanted = {name: ask for name, ask in known.items() if not names or name in names}
    for group in file.never_together:
        meet = [name for name in group if name in wanted]
        if len(meet) > 1:
            raise UsageError(
                f"{' and '.join(meet)} must not run together, says `never_together`",
                next=f"name the ones to start, without {' or without '.join(meet)}",
            )
    return wanted
