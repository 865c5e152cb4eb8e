"""A Kubernetes manifest -> one start a container, in the words of `docker run`.

Pods stand at many depths: a Deployment's template, a CronJob's, a LeaderWorkerSet's two, a KServe predictor,
a List of any of them, a resource that nobody here has heard of. What they share is a list of `containers`,
and the mapping that holds it is a pod. `command` is docker's entrypoint, `args` are the words after the
image, and `$(NAME)` is filled in from `env` before anything starts.
What a cluster decides is not put in: no restart policy (a Deployment knows only `Always`), no published port
without a `hostPort`.
Seen in https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.32/ and kubernetes/kubernetes
`third_party/forked/golang/expansion/expand.go`, 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil

from firesteel.errors import UsageError
from firesteel.reads import yaml_values
from firesteel.reads.container_start import EngineStart
from firesteel.reads.docker import DockerOption
from firesteel.reads.nodes import Node
from firesteel.reads.shell import NOWHERE, Word
from firesteel.reads.source_text import MAX_CHARACTERS, Passage, SourceFile, joined
from firesteel.reads.yaml_values import Entry

MAX_EXPANDED = 2**16
"""Characters that one word may grow to."""
_USE = re.compile(r"\$(?:\$|\((?P<name>[^()]*)\))")
_QUANTITY = re.compile(r"(\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})([eE][+-]?\d{1,2}|[KMGTPE]i|[numkMGTPE])?\Z")
_POWERS = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Mapping[str, int] = {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", start=1)}
_GPU = re.compile(r"nvidia\.com/(gpu|mig-)")
_POD = {"hostIPC": ("ipc", "host"), "hostNetwork": ("network", "host"), "hostPID": ("pid", "host")}


def starts(document: Node) -> Iterable[EngineStart] | None:
    """Every container of every pod; None when the document is no manifest."""
    if not yaml_values.text(document, "apiVersion") or not yaml_values.text(document, "kind"):
        return None
    filling = _Filling(document.page)
    name = yaml_values.text(document, "metadata", "name") or ""
    return tuple(start for pod in _pods(document) for start in _starts(pod, name, filling))


def _pods(node: Node) -> Iterator[Node]:
    """Every mapping with a list of containers; KServe's `model` is a container by another name."""
    containers, model = node.get("containers"), node.get("model", "modelFormat")
    if (containers and containers.is_list) or model:
        yield node
    for each in (*node.each(), *(value for _, value in node.items())):
        yield from _pods(each)


def _starts(pod: Node, name: str, filling: _Filling) -> Iterator[EngineStart]:
    model = pod.get("model")
    about = tuple(_about(pod))
    volumes = _volumes(pod)
    for container in (*yaml_values.each(pod, "containers"), *((model,) if model else ())):
        if container.is_mapping:
            start = _start(container, volumes, replace(filling, known={}))
            named = name or yaml_values.text(container, "name") or ""
            yield replace(start, given=tuple(_together(about, start.given)), name=named)


def _together(pod: Iterable[DockerOption], container: Sequence[DockerOption]) -> Iterator[DockerOption]:
    """A container's own word on GPUs holds over the pod's. Its `/dev/shm` lies over the host's, where
    docker's `--shm-size` would do nothing beside `--ipc=host`."""
    names = {option.name for option in container}
    about = [option for option in pod if option.name != "gpus" or "gpus" not in names]
    yield from about
    is_host_ipc = any(option.name == "ipc" for option in about)
    for option in container:
        if is_host_ipc and option.name == "shm-size":
            option = replace(option, name="tmpfs", value=f"/dev/shm:size={option.value}")
        yield option


def _about(pod: Node) -> Iterator[DockerOption]:
    """What holds for all containers of a pod."""
    for key, (name, value) in _POD.items():
        entry = yaml_values.entry(pod, key)
        if entry and yaml_values.is_true(entry[1]):
            yield from yaml_values.option(name, entry, value)
    runtime = yaml_values.entry(pod, "runtimeClassName")
    if runtime and runtime[1].text == "nvidia":
        yield from (*yaml_values.option("gpus", runtime, "all"), *yaml_values.option("runtime", runtime))


def _start(container: Node, volumes: Mapping[str, Node], filling: _Filling) -> EngineStart:
    given = [*_environment(container, filling)]
    command = _words(yaml_values.each(container, "command"), filling)
    args = _words(yaml_values.each(container, "args"), filling)
    image = container.get("image")
    given += [*_resources(container), *_ports(container), *_security(container)]
    given += [
        *yaml_values.option("workdir", yaml_values.entry(container, "workingDir")),
        *_mounts(container, volumes),
    ]
    if command:
        given.append(DockerOption("entrypoint", command[0].text, command[0]))
    word = (image.word if image else None) or yaml_values.here(container)
    return EngineStart((*command[1:], *args), word, tuple(given))


@dataclass(slots=True)
class _Spent:
    characters: int = 0


@dataclass(frozen=True, slots=True)
class _Filling:
    """The variables of a container so far, and how much all words of the document have grown."""

    page: SourceFile
    spent: _Spent = field(default_factory=_Spent)
    known: dict[str, Word] = field(default_factory=dict)

    def word(self, word: Word) -> Word:
        """`$(NAME)` where NAME is known, `$` for `$$`; all else stays."""
        inside = self._filled(word.inside) if "$" in word.text else word.inside
        if inside is word.inside or len(inside.text) > MAX_EXPANDED:
            return word
        self.spent.characters += len(inside.text)
        if self.spent.characters > MAX_CHARACTERS:
            raise UsageError(
                f"{self.page.path}:{word.line}: its $(...) stand for more than {MAX_CHARACTERS:,} characters",
                next="give only the containers that start an engine",
            )
        return replace(word, text=inside.text, inside=inside, span=NOWHERE)

    def _filled(self, passage: Passage) -> Passage:
        text, pieces = passage.text, list[Passage]()
        at = grown = 0
        for use in _USE.finditer(text):
            known = self.known.get(use["name"] or "")
            if use["name"] is not None and known is None:
                continue
            value = known.inside if known else yaml_values.made(passage, [("$", use.start())])
            pieces += [yaml_values.made(passage, [(text[at : use.start()], at)]), value]
            at = use.end()
            grown += len(value.text)
            if grown > MAX_EXPANDED:
                return passage
        return joined([*pieces, yaml_values.made(passage, [(text[at:], at)])]) if pieces else passage


def _environment(container: Node, filling: _Filling) -> Iterator[DockerOption]:
    """In order: a value may name variables before it. What comes from a secret or a field stays a name."""
    for each in yaml_values.each(container, "env"):
        node = each.get("name")
        name = node.word if node else None
        if name and name.text and "=" not in name.text:
            is_elsewhere = each.get("valueFrom") is not None
            value = _itself(name) if is_elsewhere else _value(each, filling)
            filling.known[name.text] = value
            said_so = name.text if is_elsewhere else f"{name.text}={value.text}"
            yield DockerOption("env", said_so, yaml_values.whole(each, name))


def _itself(name: Word) -> Word:
    text = f"${name.text}"
    return replace(name, text=text, inside=name.inside.inner(text, ((0, 0), (1, 0))), span=NOWHERE)


def _value(variable: Node, filling: _Filling) -> Word:
    node = variable.get("value")
    word = node.word if node else None
    return filling.word(word) if word else yaml_values.here(variable)


def _words(nodes: Iterable[Node], filling: _Filling) -> tuple[Word, ...]:
    return tuple(filling.word(each.word) for each in nodes if each.word)


def _resources(container: Node) -> Iterator[DockerOption]:
    limits, requests = container.get("resources", "limits"), container.get("resources", "requests")
    for node in (limits, requests):
        found = [entry for key, entry in (node.entries() if node else {}).items() if _GPU.match(key)]
        if found and found[0][1].text not in (None, "0"):
            yield from yaml_values.option("gpus", found[0])
            break
    yield from yaml_values.option("cpus", yaml_values.entry(limits, "cpu"))
    memory = yaml_values.entry(limits, "memory")
    yield from yaml_values.option("memory", memory, _size(memory[1]) if memory else None)


def _size(node: Node | None) -> str | None:
    count = quantity(node.text or "") if node else None
    return None if count is None else yaml_values.docker_size(count)


def quantity(text: str) -> int | None:
    """`16Gi`, `1.5G`, `2e9` -> bytes, rounded up as Kubernetes does; None when it is none."""
    match = _QUANTITY.match(text)
    if match is None:
        return None
    number, unit = Fraction(match[1]), match[2] or ""
    if unit in _BINARY:
        return ceil(number * _BINARY[unit])
    power = _POWERS[unit] if unit in _POWERS else int(unit[1:])
    return ceil(number * Fraction(f"1e{power}"))


def _ports(container: Node) -> Iterator[DockerOption]:
    """A `containerPort` opens nothing; a `hostPort` does what `-p` does."""
    for each in yaml_values.each(container, "ports"):
        inside, outside = yaml_values.entry(each, "containerPort"), yaml_values.text(each, "hostPort")
        port, address = yaml_values.text(each, "containerPort"), yaml_values.text(each, "hostIP")
        end = "/udp" if yaml_values.text(each, "protocol") == "UDP" else ""
        if port and outside:
            host = f"[{address}]:" if address and ":" in address else f"{address}:" if address else ""
            yield from yaml_values.option(
                "publish", yaml_values.entry(each, "hostPort"), f"{host}{outside}:{port}{end}"
            )
        elif port:
            yield from yaml_values.option("expose", inside, f"{port}{end}")


def _security(container: Node) -> Iterator[DockerOption]:
    context = container.get("securityContext")
    if context is None:
        return
    yield from yaml_values.switches(
        {"privileged": "privileged", "readOnlyRootFilesystem": "read-only"}, context.entries()
    )
    yield from yaml_values.option("user", yaml_values.entry(context, "runAsUser"))
    for key, name in (("add", "cap-add"), ("drop", "cap-drop")):
        words = (each.word for each in yaml_values.each(context, "capabilities", key))
        yield from (DockerOption(name, word.text, word) for word in words if word)


def _volumes(pod: Node) -> dict[str, Node]:
    named = ((yaml_values.text(each, "name"), each) for each in yaml_values.each(pod, "volumes"))
    return {name: each for name, each in named if name}


def _mounts(container: Node, volumes: Mapping[str, Node]) -> Iterator[DockerOption]:
    for each in yaml_values.each(container, "volumeMounts"):
        target = yaml_values.text(each, "mountPath")
        volume = volumes.get(yaml_values.text(each, "name") or "")
        if target:
            yield _mount(each, target, volume, yaml_values.whole(each, yaml_values.here(each)))


def _mount(mount: Node, target: str, volume: Node | None, word: Word) -> DockerOption:
    """A folder of the host, a claim as a named volume, memory as tmpfs; anything else is only a place."""
    is_read_only = yaml_values.is_true(mount.get("readOnly"))
    folder = yaml_values.text(mount, "subPath")
    path = yaml_values.text(volume, "hostPath", "path")
    claim = yaml_values.text(volume, "persistentVolumeClaim", "claimName")
    if path:
        return yaml_values.mount(
            f"{path.rstrip('/')}/{folder}" if folder else path, target, is_read_only, word
        )
    if claim and folder:
        fields = ("type=volume", f"source={claim}", f"target={target}", f"volume-subpath={folder}")
        return DockerOption(
            "mount", yaml_values.separated(*fields, *(("readonly",) if is_read_only else ())), word
        )
    if claim:
        return yaml_values.mount(claim, target, is_read_only, word)
    if yaml_values.text(volume, "emptyDir", "medium") == "Memory":
        return _memory(target, yaml_values.entry(volume, "emptyDir", "sizeLimit"), word)
    return DockerOption("volume", target, word)


def _memory(target: str, limit: Entry | None, word: Word) -> DockerOption:
    """Memory at `/dev/shm` is what `--shm-size` sets; without a limit the cluster decides how much."""
    size = _size(limit[1]) if limit else None
    if limit is None or size is None:
        return DockerOption("tmpfs", target, word)
    if target.rstrip("/") == "/dev/shm":
        return DockerOption("shm-size", size, limit[0], limit[1].word)
    return DockerOption("tmpfs", f"{target}:size={size}", limit[0], limit[1].word)
