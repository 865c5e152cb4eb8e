"""A Kubernetes manifest or a Helm chart -> one start for each container, in terms of `docker run`.

Pods occur at many depths: in the template of a Deployment or a CronJob, in the two of a LeaderWorkerSet, in a
KServe predictor, in a List of these, in resources that are unknown here. What they share is a list of
`containers`, and the mapping with that list is a pod. `command` is docker's entrypoint, `args` are the
arguments after the image, and `$(NAME)` is expanded from `env` before anything starts. What the cluster
decides is left out: no restart policy (a Deployment has only `Always`), no published port without a
`hostPort`. Of a chart, `values.yaml` and simple templates are read (`chart_starts`, `filled_template`).
Seen in https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.32/ and kubernetes/kubernetes
`third_party/forked/golang/expansion/expand.go`, 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil

from msgspec import Struct, field

from firesteel.errors import UsageError
from firesteel.reads.docker import DockerOption, EngineStart, csv_row, docker_size
from firesteel.reads.shell import NO_SPAN, Word
from firesteel.reads.source_text import MAX_CHARACTERS, SourceFile, SourceText
from firesteel.reads.template import implied_word
from firesteel.reads.yaml_nodes import (
    Entry,
    Node,
    is_true,
    mount_option,
    node_word,
    option_from,
    parse_documents,
    start_word,
    switches,
    with_node_span,
)
from firesteel.values import Value, replace

MAX_EXPANDED = 2**16
"""Characters of one expanded word."""
_USE = re.compile(r"\$(?:\$|\((?P<name>[^()]*)\))")
_QUANTITY = re.compile(r"(\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})([eE][+-]?\d{1,2}|[KMGTPE]i|[numkMGTPE])?\Z")
_POWERS = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Mapping[str, int] = {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", start=1)}
_GPU = re.compile(r"nvidia\.com/(gpu|mig-)")
_POD = {"hostIPC": ("ipc", "host"), "hostNetwork": ("network", "host"), "hostPID": ("pid", "host")}


def starts(document: Node) -> Iterable[EngineStart] | None:
    """Every container of every pod; None when the document is not a manifest."""
    if not document.text_at("apiVersion") or not document.text_at("kind"):
        return None
    expander = _Expander(document.file)
    name = document.text_at("metadata", "name") or ""
    return tuple(start for pod in _pods(document) for start in _starts(pod, name, expander))


def _pods(node: Node) -> Iterator[Node]:
    """Every mapping with a list of containers; KServe's `model` is a container too."""
    containers, model = node.get("containers"), node.get("model", "modelFormat")
    if (containers and containers.is_list) or model:
        yield node
    for child in (*node.list_items(), *(value for _, value in node.items())):
        yield from _pods(child)


def _starts(pod: Node, name: str, expander: _Expander) -> Iterator[EngineStart]:
    model = pod.get("model")
    pod_options = tuple(_pod_options(pod))
    volumes = {key: volume for volume in pod.list_items("volumes") if (key := volume.text_at("name"))}
    for container in (*pod.list_items("containers"), *((model,) if model else ())):
        if container.is_mapping:
            start = _start(container, volumes, replace(expander, known={}))
            start_name = name or container.text_at("name") or ""
            yield replace(start, options=tuple(_merge(pod_options, start.options)), name=start_name)


def _merge(pod: Iterable[DockerOption], container: Sequence[DockerOption]) -> Iterator[DockerOption]:
    """The GPUs of a container override the pod's. Its `/dev/shm` is mounted over the host's, where docker's
    `--shm-size` would have no effect with `--ipc=host`."""
    names = {option.name for option in container}
    inherited = [option for option in pod if option.name != "gpus" or "gpus" not in names]
    yield from inherited
    is_host_ipc = any(option.name == "ipc" for option in inherited)
    for option in container:
        if is_host_ipc and option.name == "shm-size":
            option = replace(option, name="tmpfs", value=f"/dev/shm:size={option.value}")
        yield option


def _pod_options(pod: Node) -> Iterator[DockerOption]:
    """What applies to all containers of a pod."""
    for key, (name, value) in _POD.items():
        entry = pod.entry_at(key)
        if entry and is_true(entry[1]):
            yield from option_from(name, entry, value)
    runtime = pod.entry_at("runtimeClassName")
    if runtime and runtime[1].text == "nvidia":
        yield from (*option_from("gpus", runtime, "all"), *option_from("runtime", runtime))


def _start(container: Node, volumes: Mapping[str, Node], expander: _Expander) -> EngineStart:
    # The environment comes first: command and arguments may refer to it.
    options = [*_environment(container, expander)]
    command = _words(container.list_items("command"), expander)
    args = _words(container.list_items("args"), expander)
    options += [
        *_resources(container),
        *_ports(container),
        *_security(container),
        *option_from("workdir", container.entry_at("workingDir")),
        *_mounts(container, volumes),
    ]
    if command:
        options.append(DockerOption("entrypoint", command[0].text, command[0]))
    node = container.get("image")
    image = (node.word if node else None) or start_word(container)
    return EngineStart((*command[1:], *args), image, tuple(options))


class _ExpandedSize(Struct):
    characters: int = 0


class _Expander(Value):
    """The variables of a container so far, and the size of all expanded words of the document."""

    file: SourceFile
    size: _ExpandedSize = field(default_factory=_ExpandedSize)
    known: dict[str, Word] = {}

    def expand(self, word: Word) -> Word:
        """Replace `$(NAME)` where NAME is known, and `$$` by one dollar."""
        content = word.content.substitute(_USE, lambda use: self._value(use, word.content), MAX_EXPANDED)
        if content is word.content or len(content.text) > MAX_EXPANDED:
            return word
        self.size.characters += len(content.text)
        if self.size.characters > MAX_CHARACTERS:
            raise UsageError(
                f"{self.file.path}:{word.line}: its $(...) expand to more than {MAX_CHARACTERS:,} characters",
                next="give only the containers that start an engine",
            )
        return replace(word, text=content.text, content=content, span=NO_SPAN)

    def _value(self, use: re.Match[str], source: SourceText) -> SourceText | None:
        if use["name"] is None:
            return source.part(use.start(), use.start() + 1)
        known = self.known.get(use["name"])
        return known.content if known else None


def _environment(container: Node, expander: _Expander) -> Iterator[DockerOption]:
    """In order, since a value may refer to variables before it. A value from a secret or a field is unknown,
    and the variable is passed on by name."""
    for variable in container.list_items("env"):
        node = variable.get("name")
        name = node.word if node else None
        if name and name.text and "=" not in name.text:
            is_reference = variable.get("valueFrom") is not None
            value = _reference(name) if is_reference else _value(variable, expander)
            expander.known[name.text] = value
            argument = name.text if is_reference else f"{name.text}={value.text}"
            yield DockerOption("env", argument, with_node_span(variable, name))


def _reference(name: Word) -> Word:
    text = f"${name.text}"
    return replace(name, text=text, content=name.content.inner(text, ((0, 0), (1, 0))), span=NO_SPAN)


def _value(variable: Node, expander: _Expander) -> Word:
    node = variable.get("value")
    word = node.word if node else None
    return expander.expand(word) if word else start_word(variable)


def _words(nodes: Iterable[Node], expander: _Expander) -> tuple[Word, ...]:
    return tuple(expander.expand(node.word) for node in nodes if node.word)


def _resources(container: Node) -> Iterator[DockerOption]:
    for kind in ("limits", "requests"):
        resources = container.entries("resources", kind)
        gpus = [entry for key, entry in resources.items() if _GPU.match(key)]
        if gpus and gpus[0][1].text not in (None, "0"):
            yield from option_from("gpus", gpus[0])
            break
    yield from option_from("cpus", container.entry_at("resources", "limits", "cpu"))
    memory = container.entry_at("resources", "limits", "memory")
    yield from option_from("memory", memory, _size(memory[1]) if memory else None)


def _size(node: Node | None) -> str | None:
    size_bytes = quantity(node.text or "") if node else None
    return None if size_bytes is None else docker_size(size_bytes)


def quantity(text: str) -> int | None:
    """`16Gi`, `1.5G`, `2e9` -> bytes, rounded up as Kubernetes does; None when it is not a quantity."""
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
    for node in container.list_items("ports"):
        port, host_port, address = (node.text_at(key) for key in ("containerPort", "hostPort", "hostIP"))
        suffix = "/udp" if node.text_at("protocol") == "UDP" else ""
        if port and host_port:
            host = f"[{address}]:" if address and ":" in address else f"{address}:" if address else ""
            value = f"{host}{host_port}:{port}{suffix}"
            yield from option_from("publish", node.entry_at("hostPort"), value)
        elif port:
            entry = node.entry_at("containerPort")
            yield from option_from("expose", entry, f"{port}{suffix}")


def _security(container: Node) -> Iterator[DockerOption]:
    context = container.get("securityContext")
    if context is None:
        return
    yield from switches(
        {"privileged": "privileged", "readOnlyRootFilesystem": "read-only"}, context.entries()
    )
    yield from option_from("user", context.entry_at("runAsUser"))
    for key, name in (("add", "cap-add"), ("drop", "cap-drop")):
        words = (item.word for item in context.list_items("capabilities", key))
        yield from (DockerOption(name, word.text, word) for word in words if word)


def _mounts(container: Node, volumes: Mapping[str, Node]) -> Iterator[DockerOption]:
    for mount in container.list_items("volumeMounts"):
        target = mount.text_at("mountPath")
        volume = volumes.get(mount.text_at("name") or "")
        word = with_node_span(mount, start_word(mount))
        if target:
            yield _mount(mount, target, volume, word) if volume else DockerOption("volume", target, word)


def _mount(mount: Node, target: str, volume: Node, word: Word) -> DockerOption:
    """A host path, a claim as a named volume, memory as tmpfs; anything else as an anonymous volume."""
    is_read_only = is_true(mount.get("readOnly"))
    folder = mount.text_at("subPath")
    path = volume.text_at("hostPath", "path")
    claim = volume.text_at("persistentVolumeClaim", "claimName")
    if path:
        return mount_option(f"{path.rstrip('/')}/{folder}" if folder else path, target, is_read_only, word)
    if claim and folder:
        fields = ("type=volume", f"source={claim}", f"target={target}", f"volume-subpath={folder}")
        return DockerOption("mount", csv_row(*fields, *(("readonly",) if is_read_only else ())), word)
    if claim:
        return mount_option(claim, target, is_read_only, word)
    if volume.text_at("emptyDir", "medium") == "Memory":
        return _memory(target, volume.entry_at("emptyDir", "sizeLimit"), word)
    return DockerOption("volume", target, word)


def _memory(target: str, limit: Entry | None, word: Word) -> DockerOption:
    """Memory at `/dev/shm` is `--shm-size`; without a limit the cluster decides its size."""
    size = _size(limit[1]) if limit else None
    if limit is None or size is None:
        return DockerOption("tmpfs", target, word)
    if target.rstrip("/") == "/dev/shm":
        return DockerOption("shm-size", size, limit[0], limit[1].word)
    return DockerOption("tmpfs", f"{target}:size={size}", limit[0], limit[1].word)


_ARGUMENT_KEYS = ("command", "args", "extraArgs")
_FLAGS = {
    "tensorParallelSize": "tensor-parallel-size", "pipelineParallelSize": "pipeline-parallel-size",
    "maxNumSeqs": "max-num-seqs", "maxModelLen": "max-model-len", "dtype": "dtype",
    "gpuMemoryUtilization": "gpu-memory-utilization", "maxLoras": "max-loras",
}  # fmt: skip
_SWITCHES = {"enableChunkedPrefill": "enable-chunked-prefill", "enablePrefixCaching": "enable-prefix-caching"}
_EXPRESSION = re.compile(
    r"""\{\{-?\s*(?:\$?\.Values\.(?P<path>[\w.-]+)|\.(?:Release|Chart)\.(?P<name>\w+))"""
    r"""(?P<pipes>(?:\s*\|\s*(?:quote|toString|int|default\s+(?:"[^"\n]*"|[\w.-]+)))*)\s*-?\}\}"""
)
_CONTROL_LINE = re.compile(r"^[ \t]*\{\{-?(?:[^{}]|\{[^{]|\}[^}])*\}\}[ \t]*$", re.MULTILINE)
_DEFAULT = re.compile(r'default\s+(?:"([^"\n]*)"|([\w.-]+))')


def chart_starts(document: Node) -> Iterable[EngineStart] | None:
    """`values.yaml` of a chart -> what its containers are given; None when no mapping has an image next to
    arguments.

    Charts differ. What they share is a mapping with an image (`repository` and `tag`, or one text) and,
    next to it, `command`, `args` or `extraArgs`. The chart of vLLM's production-stack has `modelSpec` with
    `vllmConfig`, whose keys its template turns into flags.
    Seen in vllm-project/production-stack `helm/values.yaml` and
    `templates/deployment-vllm-multi.yaml`, and in vLLM's `examples/online_serving/chart-helm`, 2026-11-16.
    """
    found = tuple(_walk(document))
    return found or None


def _walk(node: Node) -> Iterator[EngineStart]:
    if node.is_mapping:
        model = node.get("modelURL")
        image = _image(node)
        if model and model.word and image:
            yield _model_spec(node, model.word, image)
            return
        if image and any(node.get(key) or node.get("image", key) for key in _ARGUMENT_KEYS):
            yield _chart_start(node, image)
            return
    for child in (*node.list_items(), *(value for _, value in node.items())):
        if child.is_list or child.is_mapping:
            yield from _walk(child)


def _image(node: Node) -> Word | None:
    """`image: {repository: a, tag: b}`, or `repository` and `tag` next to the model."""
    holder = node if node.text_at("repository") else node.get("image")
    repository = holder.get("repository") if holder else None
    if holder is None or repository is None or repository.word is None or repository.text is None:
        return None
    tag = holder.text_at("tag")
    return implied_word(f"{repository.text}:{tag}" if tag else repository.text, repository.word)


def _chart_start(node: Node, image: Word) -> EngineStart:
    holders = [holder for holder in (node, node.get("image")) if holder]
    arguments = tuple(word for key in _ARGUMENT_KEYS for holder in holders for word in holder.words(key))
    options = _options(node, image)
    has_command = any(holder.get("command") for holder in holders)
    if has_command:  # a pod's `command` replaces the entrypoint
        options = (*options, DockerOption("entrypoint", "", image))
    return EngineStart(arguments, image, options, is_partial=not has_command)


def _options(node: Node, image: Word) -> tuple[DockerOption, ...]:
    options = [DockerOption("gpus", "all", image), DockerOption("ipc", "host", image)]
    for pair in node.list_items("env"):
        name, value = pair.text_at("name"), pair.get("value")
        if name and value and value.word:
            options.append(DockerOption("env", f"{name}={value.text}", value.word))
    return tuple(options)


def _model_spec(node: Node, model: Word, image: Word) -> EngineStart:
    words = [implied_word("vllm", image), implied_word("serve", image), model]
    for key, value in node.items("vllmConfig"):
        word = node_word(value)
        if key in _FLAGS and value.text is not None:
            words += [implied_word(f"--{_FLAGS[key]}", word), word]
        elif key in _SWITCHES and value.text == "true":
            words.append(implied_word(f"--{_SWITCHES[key]}", word))
        elif key == "extraArgs":
            words += value.words()
    entrypoint = DockerOption("entrypoint", "", image)
    return EngineStart(tuple(words), image, (*_options(node, image), entrypoint))


def is_template(source: SourceText) -> bool:
    return "{{" in source.text and ".Values." in source.text


def filled_template(file: SourceFile) -> SourceText:
    """The template with values of the chart's `values.yaml`; lines that only control it are blank."""
    values_file = file.sibling("../values.yaml") or file.sibling("values.yaml")
    try:
        documents = parse_documents(values_file) if values_file else ()
    except UsageError:
        documents = ()
    text = _CONTROL_LINE.sub(lambda match: " " * len(match[0]), file.text)

    def value(use: re.Match[str]) -> SourceText | None:
        node = documents[0].get(*use["path"].split(".")) if use["path"] and documents else None
        default = _DEFAULT.search(use["pipes"])
        text = node.text if node else (default[1] or default[2]) if default else use["name"]
        return None if text is None else SourceText(text, ((0, use.start()),))

    return file.whole.inner(text, ((0, 0),)).substitute(_EXPRESSION, value, MAX_CHARACTERS)
