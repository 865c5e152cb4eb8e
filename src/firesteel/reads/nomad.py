"""Nomad jobs (HCL) -> one start for each task of the docker or podman driver.

Only what an engine needs is read: `image`, `command`, `entrypoint`, `args`, `volumes`, `network_mode`,
`shm_size`, `ipc_mode` and `env`. Ports and devices are set elsewhere in a job, so a GPU counts as given.
Seen in the reference of Nomad's docker driver, 2026-11-16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firesteel.reads.docker import DockerOption, EngineStart
from firesteel.reads.shell import Word, make_word
from firesteel.reads.source_text import SourceFile, SourceText
from firesteel.values import Value

_JOB = re.compile(
    r"(?:[^\S\n]*(?:(?:#|//)[^\n]*)?\n)*(?>variable\s[^{]*\{.*?\n\}\s*)*job\s+\"[^\"\n]*\"\s*\{", re.DOTALL
)
_TOKEN = re.compile(
    r"""
    (?P<comment>(?:\#|//)[^\n]*|/\*(?:.*?\*/|.*))
  | (?P<open>(?P<block>[\w-]++)(?>(?:\s+"[^"\n]*")*)\s*+\{)
  | (?P<close>\})
  | (?P<key>[\w-]++|"[^"\n]*")\s*+=\s*+(?P<value>
      "(?:[^"\\\n]|\\.)*" | \[[^\]]*\]? | <<-?(?P<mark>\w++)\n(?:.*?\n\s*+(?P=mark)\b|.*) | [^\s{}]+)
  | (?P<other>\s+|[\w-]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
"""What is never closed extends to the end, so that it is searched for only once."""
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_OPTIONS = {"network_mode": "network", "ipc_mode": "ipc", "entrypoint": "entrypoint"}


class _Setting(Value):
    path: tuple[str, ...]
    key: str
    words: tuple[Word, ...]


def starts(file: SourceFile, source: SourceText) -> tuple[EngineStart, ...] | None:
    """None when the text is not a Nomad job."""
    if not _JOB.match(source.text):
        return None
    tasks: list[list[_Setting]] = []
    for setting in _settings(file, source):
        if setting is None:
            tasks.append([])
        elif tasks and "task" in setting.path:
            tasks[-1].append(setting)
    return tuple(start for task in tasks for start in _start(task))


def _settings(file: SourceFile, source: SourceText) -> Iterator[_Setting | None]:
    """Every `key = value`, with the blocks around it; None where a task begins."""
    path: list[str] = []
    for token in _TOKEN.finditer(source.text):
        if token["open"]:
            path.append(token["block"])
            if token["block"] == "task":
                yield None
        elif token["close"] and path:
            path.pop()
        elif token["key"]:
            words = []
            for string in _STRING.finditer(source.text, token.start("value"), token.end("value")):
                text = string[1].replace('\\"', '"').replace("\\\\", "\\")
                words.append(make_word(((text, string.start(1)),), source, string.span(), file, True))
            yield _Setting(tuple(path), token["key"].strip('"'), tuple(words))


def _start(task: list[_Setting]) -> Iterator[EngineStart]:
    config = {setting.key: setting.words for setting in task if setting.path[-1:] == ("config",)}
    image = next(iter(config.get("image", ())), None)
    if image is None:
        return
    options = [DockerOption("gpus", "all", image)]
    options += [
        DockerOption("env", f"{setting.key}={setting.words[0].text}", setting.words[0])
        for setting in task
        if setting.path[-1:] == ("env",) and setting.words
    ]
    options += [
        DockerOption(_OPTIONS[key], config[key][0].text, config[key][0])
        for key in _OPTIONS
        if config.get(key)
    ]
    options += [DockerOption("volume", word.text, word) for word in config.get("volumes", ())]
    arguments = (*config.get("entrypoint", ())[1:], *config.get("command", ()), *config.get("args", ()))
    yield EngineStart(arguments, image, tuple(options))
