"""Helm: `values.yaml` of a chart -> what its containers are given; and simple templates -> manifests.

Charts differ. What they share is a mapping with an image (`repository` and `tag`, or one text) and, beside
it, `command`, `args` or `extraArgs`. The chart of vLLM's production-stack has `modelSpec` with
`vllmConfig`, whose keys its template turns into flags.
Seen in vllm-project/production-stack `helm/values.yaml` and `templates/deployment-vllm-multi.yaml`, and in
vLLM's `examples/online_serving/chart-helm`, 2026-11-16.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from firesteel.errors import UsageError
from firesteel.reads.docker import DockerOption
from firesteel.reads.engine_start import EngineStart
from firesteel.reads.nodes import Node, parse_documents
from firesteel.reads.shell import Word
from firesteel.reads.source_text import MAX_CHARACTERS, SourceFile, SourceText
from firesteel.reads.template import implied_word
from firesteel.reads.yaml_values import node_word

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


def starts(document: Node) -> Iterable[EngineStart] | None:
    """None when no mapping has an image beside arguments."""
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
            yield _start(node, image)
            return
    for child in (*node.list_items(), *(value for _, value in node.items())):
        if child.is_list or child.is_mapping:
            yield from _walk(child)


def _image(node: Node) -> Word | None:
    """`image: {repository: a, tag: b}`, or `repository` and `tag` beside the model."""
    holder = node if node.text_at("repository") else node.get("image")
    repository = holder.get("repository") if holder else None
    if holder is None or repository is None or repository.word is None or repository.text is None:
        return None
    tag = holder.text_at("tag")
    return implied_word(f"{repository.text}:{tag}" if tag else repository.text, repository.word)


def _start(node: Node, image: Word) -> EngineStart:
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
    values_file = file.beside("../values.yaml") or file.beside("values.yaml")
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
