"""Scripts inside YAML of other tools -> commands: GitHub and GitLab pipelines, Ansible, Taskfiles,
devcontainers.

A key that holds a script (`run`, `script`, `shell`, `cmd`) is read as one, with the `env` around it. A
pipeline's `services` and Ansible's `docker_container` are containers. `{{ name }}` is filled from the
`vars` of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from firesteel.reads.docker import DockerOption, EngineStart, parse_options
from firesteel.reads.shell import Word
from firesteel.reads.source_text import SourceText, join_texts
from firesteel.reads.template import TemplateFiller, TemplateValues, implied_word
from firesteel.reads.yaml_nodes import Node, node_word

_SCRIPT_KEYS = frozenset(
    {"run", "script", "before_script", "after_script", "cmd", "cmds", "command", "shell", "argv", "raw"}
)
_ANSIBLE = re.compile(r"(?:ansible\.builtin\.)?(?:shell|command|raw|script)\Z")
_CONTAINER_MODULE = re.compile(r"(?:community\.docker\.|containers\.podman\.)?(?:docker|podman)_container\Z")
_FILE_MODULE = re.compile(r"(?:ansible\.builtin\.)?copy\Z")
_PLACEHOLDER = re.compile(r"\{\{-?\s*([A-Za-z_]\w*)\s*-?\}\}")
_LISTS = {"published_ports": "publish", "ports": "publish", "volumes": "volume"}
_VALUES = {"network_mode": "network", "ipc_mode": "ipc", "shm_size": "shm-size", "restart_policy": "restart"}
MAX_SCRIPTS = 2000


def starts(document: Node) -> Iterable[EngineStart] | None:
    """None when the document is neither a pipeline nor a list of Ansible's plays or tasks."""
    is_pipeline = bool(document.get("jobs")) and not document.get("kind")
    is_gitlab = any(job.get("script") for _, job in document.items())
    is_taskfile = bool(document.get("tasks")) and bool(document.get("version"))
    is_ansible = document.is_list and any(
        item.get("tasks") or item.get("hosts") or _modules(item) for item in document.list_items()
    )
    if not (is_pipeline or is_gitlab or is_taskfile or is_ansible):
        return None
    filler = TemplateFiller(document.file)
    found: list[EngineStart] = []
    for start in _walk(document, {}, TemplateValues(dict(_variables(document)), _PLACEHOLDER, filler)):
        found.append(start)
        if len(found) >= MAX_SCRIPTS:
            break
    return found


def _modules(item: Node) -> list[str]:
    patterns = (_ANSIBLE, _CONTAINER_MODULE, _FILE_MODULE)
    return [name for name, _ in item.items() if any(pattern.match(name) for pattern in patterns)]


def _variables(node: Node) -> Iterator[tuple[str, SourceText]]:
    """The `vars` of every play and task; the first of a name counts."""
    for name, value in (*node.items("vars"),):
        if value.text is not None:
            yield name, value.content
    for child in (*node.list_items(), *(value for _, value in node.items())):
        if child.is_list or child.is_mapping:
            yield from _variables(child)


def _walk(node: Node, env: dict[str, Word], values: TemplateValues) -> Iterator[EngineStart]:
    own = {
        **env,
        **{
            name: word
            for key in ("env", "variables", "environment")
            for name, value in node.items(key)
            if (word := value.word)
        },
    }
    for key, value in node.items():
        if _CONTAINER_MODULE.match(key) or (key == "container" and value.is_mapping):
            yield from _container(value, values)
        elif key == "services" and value.is_mapping:
            for _, service in value.items():
                yield from _container(service, values)
        elif key in _SCRIPT_KEYS or _ANSIBLE.match(key):
            yield from _script(value, own, values)
    for child in (*node.list_items(), *(value for _, value in node.items())):
        if child.is_list or child.is_mapping:
            yield from _walk(child, own, values)


def _filled(node: Node, values: TemplateValues) -> SourceText:
    return values.filler.fill(node.content, _PLACEHOLDER, lambda match: values.get(match[1])).content


def _script(node: Node, env: dict[str, Word], values: TemplateValues) -> Iterator[EngineStart]:
    """A text, a list of lines, or Ansible's mapping with `cmd` or `argv`."""
    if node.is_mapping:
        return  # `cmd` and `argv` inside are keys of their own
    lines = list(node.list_items()) if node.is_list else [node]
    scripts = [line for line in lines if line.text is not None]
    if not scripts:
        return
    newline = SourceText("\n", scripts[0].content.anchors[:1])
    content = join_texts(part for line in scripts for part in (_filled(line, values), newline))
    near = node_word(scripts[0])
    script = Word(content.text, near.line, near.column, 0, len(content.text), near.span, content, True)
    yield EngineStart((implied_word("bash", near), implied_word("-c", near), script), env=env)


def _container(node: Node, values: TemplateValues) -> Iterator[EngineStart]:
    image = node.get("image")
    if image is None or image.word is None:
        return
    options = (
        [DockerOption("gpus", "all", image.word)] if node.get("device_requests") or node.get("gpus") else []
    )
    for key, option in _VALUES.items():
        if value := node.get(key):
            options += [DockerOption(option, value.text, value.word)] if value.word else []
    for key, option in _LISTS.items():
        options += [DockerOption(option, word.text, word) for word in node.words(key)]
    for name, value in node.items("env"):
        options += (
            [DockerOption("env", f"{name}={_filled(value, values).text}", value.word)] if value.word else []
        )
    given, _ = parse_options(node.words("options"))
    reference = implied_word(_filled(image, values).text, image.word)
    command = node.get("command")
    arguments: tuple[Word, ...] = ()
    if command:
        filled = values.filler.fill(command.content, _PLACEHOLDER, lambda match: values.get(match[1]))
        arguments = node.words("command") if command.is_list else filled.words(node.file)
    yield EngineStart(arguments, reference, (*options, *given))
