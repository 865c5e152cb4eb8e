"""A compose file -> one start a service, in the words of `docker run`.

Each key of a service has its option; `extends`, anchors and merge keys are followed within the file, and
other files are not opened. A service that is built from a folder has no known image. Which services start an
engine is for others to say.
Seen in compose-spec/compose-go (`loader/extends.go`, `override/merge.go`, `transform/`), 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from firesteel.errors import UsageError
from firesteel.reads import yaml_values
from firesteel.reads.compose_text import ExpandedText, split
from firesteel.reads.container_start import EngineStart
from firesteel.reads.docker import DockerOption
from firesteel.reads.nodes import Node
from firesteel.reads.shell import NOWHERE, Word
from firesteel.reads.source_text import SourceFile
from firesteel.reads.yaml_values import Entry

MAX_WORDS = 20_000
"""Words and options of all services of a file, what they take from one another counted again."""
MAX_EXTENDS = 16
"""Services that extend one another in a row."""

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
"""`runtime: nvidia` gives way to any word on GPUs, and what `deploy` says holds over the rest but `gpus`."""
_RESTARTS = {"any": "always", "always": "always", "none": "no", "no": "no", "on-failure": "on-failure",
             "unless-stopped": "unless-stopped"}  # fmt: skip
_MANY = frozenset({"env", "label", "publish", "volume", "mount", "ulimit", *_LISTS.values()})
"""Options that may be given again; of any other the last holds."""


@dataclass(frozen=True, slots=True)
class _Service:
    """What a service says; None: nothing, so that what it extends holds."""

    given: tuple[DockerOption, ...] = ()
    image: Word | None = None
    entrypoint: Words | None = None
    command: Words | None = None
    clears: Word | None = None
    """Where an empty entrypoint stands."""


def starts(document: Node) -> Iterable[EngineStart] | None:
    """Every service; None when the document is no compose file."""
    services = document.get("services")
    if services is None or document.get("kind") is not None:
        return None
    known = {name: node for name, node in services.items() if node.is_mapping}
    return tuple(_bounded(_starts(known), document.page)) if known else None


def _bounded(starts: Iterable[EngineStart], page: SourceFile) -> Iterator[EngineStart]:
    words = 0
    for start in starts:
        words += len(start.words) + len(start.given)
        if words > MAX_WORDS:
            raise UsageError(
                f"{page.path}: its services have more than {MAX_WORDS:,} words and options",
                next="give it in smaller parts",
            )
        yield start


def _starts(services: Mapping[str, Node]) -> Iterator[EngineStart]:
    read: dict[str, _Service] = {}
    for name, node in services.items():
        service = _with_bases(name, services, read)
        entrypoint = service.entrypoint or ()
        given = _once(service.given)
        if service.clears:
            given += (DockerOption("entrypoint", "", service.clears),)
        elif entrypoint:
            given += (DockerOption("entrypoint", entrypoint[0].text, entrypoint[0]),)
        # With `build` the image is only what the build will be called.
        image = None if node.get("build") else service.image
        image = image or yaml_values.here(node)
        yield EngineStart((*entrypoint[1:], *(service.command or ())), image, given, name=name)


def _once(given: Sequence[DockerOption]) -> tuple[DockerOption, ...]:
    last = {option.name: option for option in given}
    return tuple(option for option in given if option.name in _MANY or last[option.name] is option)


def _with_bases(name: str, services: Mapping[str, Node], read: dict[str, _Service]) -> _Service:
    """A service over those that it extends. One in another file is not known here."""
    chain = [name]
    while (base := _base(services[chain[-1]])) in services:
        chain.append(str(base))
        if len(chain) > MAX_EXTENDS:
            page, line = services[name].page, yaml_values.here(services[name]).line
            raise UsageError(
                f"{page.path}:{line}: `{name}` extends more than {MAX_EXTENDS} services in a row",
                next="write the service out",
            )
    service = _Service()
    for each in reversed(chain):
        if each not in read:
            read[each] = _service(services[each])
        service = _over(read[each], service)
    return service


def _base(service: Node) -> str | None:
    extends = service.get("extends")
    if extends is None or extends.text is not None:
        return yaml_values.text(extends)
    return None if extends.get("file") else yaml_values.text(extends, "service")


def _over(service: _Service, base: _Service) -> _Service:
    has_entrypoint = service.entrypoint is not None
    return _Service(
        base.given + service.given,
        service.image or base.image,
        service.entrypoint if has_entrypoint else base.entrypoint,
        base.command if service.command is None else service.command,
        service.clears if has_entrypoint else base.clears,
    )


def _service(node: Node) -> _Service:
    entries = node.entries()
    image = entries.get("image")
    entrypoint = _command(entries.get("entrypoint"))
    given = [*yaml_values.switches(_SWITCHES, entries)]
    for key in sorted(entries, key=lambda key: _ORDER.get(key, 1)):
        given += _options(key, entries[key])
    return _Service(
        tuple(given),
        _word(image[1]) if image else None,
        entrypoint,
        _command(entries.get("command")),
        entries["entrypoint"][0] if entrypoint == () else None,
    )


def _options(key: str, entry: Entry) -> Iterable[DockerOption]:
    if key in _VALUES:
        return _option(_VALUES[key], entry)
    if key in _LISTS:
        return _listed(_LISTS[key], entry[1])
    return _READERS[key](entry) if key in _READERS else ()


def _option(name: str, entry: Entry | None) -> list[DockerOption]:
    value = _word(entry[1]) if entry else None
    return [DockerOption(name, value.text, entry[0], value)] if entry and value else []


def _listed(name: str, node: Node) -> Iterator[DockerOption]:
    """A list, or one text alone."""
    for each in node.each() if node.is_list else (node,):
        word = _word(each)
        if word:
            yield DockerOption(name, word.text, word)


def _pairs(name: str, node: Node) -> Iterator[DockerOption]:
    """`NAME: value` or `- NAME=value`; a name alone is passed on from the host."""
    if node.is_list:
        yield from _listed(name, node)
    for key, (word, value) in node.entries().items():
        text = _word(value)
        yield DockerOption(name, f"{key}={text.text}" if text else key, word, text)


def _environment(entry: Entry) -> Iterable[DockerOption]:
    return _pairs("env", entry[1])


def _labels(entry: Entry) -> Iterable[DockerOption]:
    return _pairs("label", entry[1])


def _runtime(entry: Entry) -> Iterator[DockerOption]:
    for option in _option("runtime", entry):
        if option.value == "nvidia":
            yield replace(option, name="gpus", value="all")
        yield option


def _ports(entry: Entry) -> Iterator[DockerOption]:
    for each in entry[1].each():
        if not each.is_mapping:
            yield from _listed("publish", each)
            continue
        target, published = _text(each, "target"), _text(each, "published")
        address, protocol = _text(each, "host_ip"), _text(each, "protocol")
        if target:
            host = f"[{address}]" if address and ":" in address else address
            before = f"{host}:{published or ''}:" if host else f"{published}:" if published else ""
            end = f"/{protocol}" if protocol and protocol != "tcp" else ""
            yield DockerOption("publish", f"{before}{target}{end}", yaml_values.place(each))


def _volumes(entry: Entry) -> Iterator[DockerOption]:
    for each in entry[1].each():
        if not each.is_mapping:
            yield from _listed("volume", each)
            continue
        source, target = _text(each, "source"), _text(each, "target")
        kind = _text(each, "type") or "volume"
        if target and source and kind in ("bind", "volume"):
            yield yaml_values.mount(
                source, target, yaml_values.is_true(each.get("read_only")), yaml_values.place(each)
            )
        elif target:
            yield DockerOption(
                "mount", yaml_values.separated(f"type={kind}", f"target={target}"), yaml_values.place(each)
            )


def _ulimits(entry: Entry) -> Iterator[DockerOption]:
    for name, (word, node) in entry[1].entries().items():
        soft, hard = _text(node, "soft"), _text(node, "hard")
        value = f"{soft}:{hard}" if soft and hard else _text(node) or soft or hard
        if value:
            yield DockerOption("ulimit", f"{name}={value}", word, node.word)


def _gpus(entry: Entry) -> Iterator[DockerOption]:
    """`gpus: all`, or a list of devices as under `deploy`."""
    key, node = entry
    if node.text:
        yield DockerOption("gpus", "all", key, node.word)
    for each in node.each():
        yield from _device(each, key)


def _device(device: Node, key: Word) -> Iterator[DockerOption]:
    """A reservation in the words of `--gpus`: without a count and without ids it is all of them."""
    capabilities = device.get("capabilities")
    names = {word.text for word in capabilities.words()} if capabilities else {"gpu"}
    if not names & {"gpu", "nvidia"} and _text(device, "driver") != "nvidia":
        return
    ids = [each.text for each in _words(yaml_values.each(device, "device_ids"))]
    count = _text(device, "count") or "all"
    if ids:
        value = f"device={ids[0]}" if len(ids) == 1 else f'"device={",".join(ids)}"'
    else:
        value = "all" if count == "-1" else count
    found = yaml_values.entry(device, "device_ids" if ids else "count")
    yield DockerOption("gpus", value, found[0] if found else key, found[1].word if found else None)


def _deploy(entry: Entry) -> Iterator[DockerOption]:
    deploy = entry[1]
    for each in yaml_values.each(deploy, "resources", "reservations", "devices"):
        yield from _device(each, yaml_values.here(each))
    yield from _option("memory", yaml_values.entry(deploy, "resources", "limits", "memory"))
    yield from _option("memory-reservation", yaml_values.entry(deploy, "resources", "reservations", "memory"))
    yield from _option("cpus", yaml_values.entry(deploy, "resources", "limits", "cpus"))
    policy = yaml_values.entry(deploy, "restart_policy", "condition")
    condition = _RESTARTS.get(_text(policy[1]) or "") if policy else None
    if policy and condition:
        attempts = _text(deploy, "restart_policy", "max_attempts")
        bounded = condition == "on-failure" and attempts
        yield DockerOption(
            "restart", f"{condition}:{attempts}" if bounded else condition, policy[0], policy[1].word
        )


_READERS: Mapping[str, Callable[[Entry], Iterable[DockerOption]]] = {
    "environment": _environment, "labels": _labels, "runtime": _runtime, "ports": _ports,
    "volumes": _volumes, "ulimits": _ulimits, "gpus": _gpus, "deploy": _deploy,
}  # fmt: skip


def _text(node: Node, *keys: str) -> str | None:
    found = node.get(*keys) if keys else node
    word = _word(found) if found else None
    return word.text if word else None


def _words(nodes: Iterable[Node]) -> Words:
    return tuple(word for word in map(_word, nodes) if word)


def _word(node: Node) -> Word | None:
    """A scalar as one word, its variables read."""
    word = node.word
    if word is None or "$" not in word.text:
        return word
    filled = ExpandedText(word.inside)
    return replace(word, text=filled.text, inside=filled.passage, span=NOWHERE) if filled.touched else word


def _command(entry: Entry | None) -> Words | None:
    """The words of a command; None when nothing is said, () when it is said to be empty."""
    node = entry[1] if entry else None
    if node is None or (node.text is None and not node.is_list):
        return None
    words = _words(node.each()) if node.is_list else split(ExpandedText(node.passage), node.page)
    return tuple(islice(words, MAX_WORDS + 1))
