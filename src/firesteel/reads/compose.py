"""A compose file -> one start for each service, in terms of `docker run`.

Each key of a service has its option. `extends`, anchors and merge keys are followed; `extends` also into
files in the same folder, and `.env` gives values to variables (`compose_text.py`). A service that is built
from a folder has no known image. `launches.py` decides which services start an engine.
Seen in compose-spec/compose-go (`loader/extends.go`, `override/merge.go`, `transform/`), 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from firesteel.errors import UsageError
from firesteel.reads.compose_text import ExpandedText, split_command
from firesteel.reads.docker import DockerOption, EngineStart, csv_row
from firesteel.reads.shell import NO_SPAN, Word
from firesteel.reads.source_text import SourceFile
from firesteel.reads.template import implied_word
from firesteel.reads.yaml_nodes import (
    Entry,
    Node,
    is_true,
    mount_option,
    node_word,
    parse_documents,
    start_word,
    switches,
)
from firesteel.values import Value, replace

MAX_WORDS = 20_000
"""Arguments and options of all services of a file, inherited ones counted for each service."""
MAX_EXTENDS = 16
"""How long a chain of `extends` may be."""
MAX_FILES = 4
"""How many files a chain of `extends` may go through."""

Words = tuple[Word, ...]

_VALUES = {
    "container_name": "name", "cpus": "cpus", "cpuset": "cpuset-cpus", "hostname": "hostname", "ipc": "ipc",
    "mem_limit": "memory", "mem_reservation": "memory-reservation", "memswap_limit": "memory-swap",
    "network_mode": "network", "oom_score_adj": "oom-score-adj", "pid": "pid", "platform": "platform",
    "pull_policy": "pull", "restart": "restart", "shm_size": "shm-size", "user": "user",
    "working_dir": "workdir",
}  # fmt: skip
_SWITCHES = {
    "init": "init", "oom_kill_disable": "oom-kill-disable", "privileged": "privileged",
    "read_only": "read-only", "stdin_open": "interactive", "tty": "tty",
}  # fmt: skip
_LISTS = {
    "cap_add": "cap-add", "cap_drop": "cap-drop", "devices": "device", "dns": "dns", "env_file": "env-file",
    "expose": "expose", "extra_hosts": "add-host", "group_add": "group-add", "security_opt": "security-opt",
    "tmpfs": "tmpfs",
}  # fmt: skip
_ORDER = {"runtime": 0, "deploy": 2, "gpus": 3}
"""Later options override earlier ones: any setting of GPUs overrides `runtime: nvidia`, `deploy` overrides
the other keys, and `gpus` overrides `deploy`."""
_RESTARTS = {"any": "always", "always": "always", "none": "no", "no": "no", "on-failure": "on-failure",
             "unless-stopped": "unless-stopped"}  # fmt: skip
_REPEATABLE = frozenset({"env", "label", "publish", "volume", "mount", "ulimit", *_LISTS.values()})
"""Options that may be repeated; of any other the last one counts."""


class _Service(Value):
    """The settings of a service; None inherits from the service that it extends."""

    options: tuple[DockerOption, ...] = ()
    image: Word | None = None
    entrypoint: Words | None = None
    command: Words | None = None
    empty_entrypoint: Word | None = None
    """The key of an entrypoint that is set to nothing."""
    missing: Word | None = None
    """The file of a base that is not at hand."""


def starts(document: Node) -> Iterable[EngineStart] | None:
    """Every service; None when the document is not a compose file."""
    if document.get("kind") is not None:
        return None
    known = {name: node for name, node in document.items("services") if node.is_mapping}
    return tuple(_limited(_starts(known), document.file)) if known else None


def _limited(starts: Iterable[EngineStart], file: SourceFile) -> Iterator[EngineStart]:
    count = 0
    for start in starts:
        count += len(start.arguments) + len(start.options)
        if count > MAX_WORDS:
            raise UsageError(
                f"{file.path}: its services have more than {MAX_WORDS:,} arguments and options",
                next="split the file",
            )
        yield start


def _starts(services: Mapping[str, Node]) -> Iterator[EngineStart]:
    cache: dict[str, _Service] = {}
    # A guide or a script may hold several compose files, of which one runs.
    together = f"compose {start_word(next(iter(services.values()))).line}"
    for name, node in services.items():
        service = _inherit(name, services, cache)
        entrypoint = service.entrypoint or ()
        last = {option.name: option for option in service.options}
        options = [
            option for option in service.options if option.name in _REPEATABLE or last[option.name] is option
        ]
        if service.empty_entrypoint:
            options.append(DockerOption("entrypoint", "", service.empty_entrypoint))
        elif entrypoint:
            options.append(DockerOption("entrypoint", entrypoint[0].text, entrypoint[0]))
        # With `build` the image is only the name of the result.
        image = None if node.get("build") else service.image
        image = image or start_word(node)
        arguments = (*entrypoint[1:], *(service.command or ()))
        # A service with a profile runs only where that is asked for.
        runs_with = "" if node.get("profiles") else together
        yield EngineStart(
            arguments, image, tuple(options), name=name, missing=service.missing, runs_with=runs_with
        )


def _inherit(name: str, services: Mapping[str, Node], cache: dict[str, _Service], depth: int = 0) -> _Service:
    """A service merged with those that it extends."""
    chain = [name]
    while (base := _base(services[chain[-1]])) in services:
        chain.append(str(base))
        if len(chain) > MAX_EXTENDS:
            file, line = services[name].file, start_word(services[name]).line
            raise UsageError(
                f"{file.path}:{line}: `{name}` extends more than {MAX_EXTENDS} services in a row",
                next="merge the services",
            )
    service = _base_elsewhere(services[chain[-1]], depth)
    for link in reversed(chain):
        if link not in cache:
            cache[link] = _service(services[link])
        service = _merge(cache[link], service)
    return service


def _base(service: Node) -> str | None:
    if service.get("extends", "file"):
        return None
    return service.text_at("extends") or service.text_at("extends", "service")


def _base_elsewhere(service: Node, depth: int) -> _Service:
    """The base in another file, with the position of `extends`; empty where that file is not at hand."""
    name, path = service.text_at("extends", "service"), service.word_at("extends", "file")
    if name is None or path is None:
        return _Service()
    file = service.file.sibling(path.text) if depth < MAX_FILES else None
    try:
        documents = parse_documents(file) if file else ()
    except UsageError:
        documents = ()
    for document in documents:
        services = {key: node for key, node in document.items("services") if node.is_mapping}
        if name in services:
            return _placed_at(path, _inherit(name, services, {}, depth + 1))
    return _Service(missing=path)


def _placed_at(near: Word, service: _Service) -> _Service:
    def placed(words: Words | None) -> Words | None:
        return None if words is None else tuple(implied_word(word.text, near) for word in words)

    options = (DockerOption(option.name, option.value, near) for option in service.options)
    image = implied_word(service.image.text, near) if service.image else None
    empty = near if service.empty_entrypoint else None
    return _Service(tuple(options), image, placed(service.entrypoint), placed(service.command), empty)


def _merge(service: _Service, base: _Service) -> _Service:
    has_entrypoint = service.entrypoint is not None
    return _Service(
        base.options + service.options,
        service.image or base.image,
        service.entrypoint if has_entrypoint else base.entrypoint,
        base.command if service.command is None else service.command,
        service.empty_entrypoint if has_entrypoint else base.empty_entrypoint,
        base.missing,
    )


def _service(node: Node) -> _Service:
    entries = node.entries()
    image = entries.get("image")
    entrypoint = _command(entries.get("entrypoint"))
    options = switches(_SWITCHES, entries)
    for key in sorted(entries, key=lambda key: _ORDER.get(key, 1)):
        options += _options(key, entries[key])
    return _Service(
        tuple(options),
        _word(image[1]) if image else None,
        entrypoint,
        _command(entries.get("command")),
        entries["entrypoint"][0] if entrypoint == () else None,
    )


def _options(key: str, entry: Entry) -> Iterable[DockerOption]:
    if key in _VALUES:
        return _option(_VALUES[key], entry)
    if key in _LISTS:
        return _list_options(_LISTS[key], entry[1])
    return _READERS[key](entry) if key in _READERS else ()


def _option(name: str, entry: Entry | None) -> list[DockerOption]:
    value = _word(entry[1]) if entry else None
    return [DockerOption(name, value.text, entry[0], value)] if entry and value else []


def _list_options(name: str, node: Node) -> Iterator[DockerOption]:
    """A list, or a single scalar."""
    for item in node.list_items() if node.is_list else (node,):
        word = _word(item)
        if word:
            yield DockerOption(name, word.text, word)


def _pairs(name: str, node: Node) -> Iterator[DockerOption]:
    """`NAME: value` or `- NAME=value`; a name without a value is passed on from the host."""
    if node.is_list:
        yield from _list_options(name, node)
    for key, (word, value) in node.entries().items():
        text = _word(value)
        yield DockerOption(name, f"{key}={text.text}" if text else key, word, text)


def _runtime(entry: Entry) -> Iterator[DockerOption]:
    for option in _option("runtime", entry):
        if option.value == "nvidia":
            yield replace(option, name="gpus", value="all")
        yield option


def _ports(entry: Entry) -> Iterator[DockerOption]:
    for port in entry[1].list_items():
        if not port.is_mapping:
            yield from _list_options("publish", port)
            continue
        target, published = _text(port, "target"), _text(port, "published")
        address, protocol = _text(port, "host_ip"), _text(port, "protocol")
        if target:
            host = f"[{address}]" if address and ":" in address else address
            prefix = f"{host}:{published or ''}:" if host else f"{published}:" if published else ""
            suffix = f"/{protocol}" if protocol and protocol != "tcp" else ""
            yield DockerOption("publish", f"{prefix}{target}{suffix}", node_word(port))


def _volumes(entry: Entry) -> Iterator[DockerOption]:
    for volume in entry[1].list_items():
        if not volume.is_mapping:
            yield from _list_options("volume", volume)
            continue
        source, target = _text(volume, "source"), _text(volume, "target")
        kind, word = _text(volume, "type") or "volume", node_word(volume)
        if target and source and kind in ("bind", "volume"):
            is_read_only = is_true(volume.get("read_only"))
            yield mount_option(source, target, is_read_only, word)
        elif target:
            yield DockerOption("mount", csv_row(f"type={kind}", f"target={target}"), word)


def _ulimits(entry: Entry) -> Iterator[DockerOption]:
    for name, (word, node) in entry[1].entries().items():
        soft, hard = _text(node, "soft"), _text(node, "hard")
        value = f"{soft}:{hard}" if soft and hard else _text(node) or soft or hard
        if value:
            yield DockerOption("ulimit", f"{name}={value}", word, node.word)


def _healthcheck(entry: Entry) -> Iterator[DockerOption]:
    """`test: ["CMD-SHELL", ...]` or one string, as `docker run` takes it; `CMD` with words has no option."""
    test = entry[1].get("test")
    words = _words(test.list_items()) if test and test.is_list else ()
    if test and len(words) == 2 and words[0].text == "CMD-SHELL":
        yield DockerOption("health-cmd", words[1].text, words[1])
    elif test and (word := _word(test)):
        yield DockerOption("health-cmd", word.text, word)
    for key in ("interval", "timeout", "start_period", "retries"):
        yield from _option(f"health-{key.replace('_', '-')}", entry[1].entry_at(key))


def _gpus(entry: Entry) -> Iterator[DockerOption]:
    """`gpus: all`, or a list of devices as under `deploy`."""
    key, node = entry
    if node.text:
        yield DockerOption("gpus", "all", key, node.word)
    for device in node.list_items():
        yield from _device(device, key)


def _device(device: Node, key: Word) -> Iterator[DockerOption]:
    """A reservation as `--gpus`: without a count and without ids it is all GPUs."""
    capabilities = device.get("capabilities")
    names = {word.text for word in capabilities.words()} if capabilities else {"gpu"}
    if not names & {"gpu", "nvidia"} and _text(device, "driver") != "nvidia":
        return
    ids = [word.text for word in _words(device.list_items("device_ids"))]
    count = _text(device, "count") or "all"
    if ids:
        value = f"device={ids[0]}" if len(ids) == 1 else f'"device={",".join(ids)}"'
    else:
        value = "all" if count == "-1" else count
    entry = device.entry_at("device_ids" if ids else "count")
    yield DockerOption("gpus", value, entry[0] if entry else key, entry[1].word if entry else None)


def _deploy(entry: Entry) -> Iterator[DockerOption]:
    deploy = entry[1]
    for device in deploy.list_items("resources", "reservations", "devices"):
        yield from _device(device, start_word(device))
    yield from _option("memory", deploy.entry_at("resources", "limits", "memory"))
    yield from _option("memory-reservation", deploy.entry_at("resources", "reservations", "memory"))
    yield from _option("cpus", deploy.entry_at("resources", "limits", "cpus"))
    policy = deploy.entry_at("restart_policy", "condition")
    condition = _RESTARTS.get(_text(policy[1]) or "") if policy else None
    if policy and condition:
        attempts = _text(deploy, "restart_policy", "max_attempts")
        is_limited = condition == "on-failure" and attempts
        value = f"{condition}:{attempts}" if is_limited else condition
        yield DockerOption("restart", value, policy[0], policy[1].word)


_READERS: Mapping[str, Callable[[Entry], Iterable[DockerOption]]] = {
    "environment": lambda entry: _pairs("env", entry[1]), "labels": lambda entry: _pairs("label", entry[1]),
    "runtime": _runtime, "ports": _ports,
    "healthcheck": _healthcheck, "volumes": _volumes, "ulimits": _ulimits, "gpus": _gpus, "deploy": _deploy,
}  # fmt: skip


def _text(node: Node, *keys: str) -> str | None:
    value = node.get(*keys) if keys else node
    word = _word(value) if value else None
    return word.text if word else None


def _words(nodes: Iterable[Node]) -> Words:
    return tuple(word for word in map(_word, nodes) if word)


def _word(node: Node) -> Word | None:
    """A scalar as one word, with its variables expanded."""
    word = node.word
    if word is None or "$" not in word.text:
        return word
    expanded = ExpandedText(word.content, node.file.dotenv)
    if not expanded.expanded_spans:
        return word
    return replace(word, text=expanded.text, content=expanded.content, span=NO_SPAN)


def _command(entry: Entry | None) -> Words | None:
    """The words of a command; None when it is not set, () when it is set to nothing."""
    node = entry[1] if entry else None
    if node is None or (node.text is None and not node.is_list):
        return None
    words = (
        _words(node.list_items())
        if node.is_list
        else split_command(ExpandedText(node.content, node.file.dotenv), node.file)
    )
    return tuple(islice(words, MAX_WORDS + 1))
