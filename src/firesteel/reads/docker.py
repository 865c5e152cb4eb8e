"""The arguments of `docker run` -> the container around an engine.

Docker's own rules: options end at the first word that is not an option, which is the image; short options
may be combined (`-itd`), and the value of a short option may follow it directly (`-p8000:8000`); every option
that is not in docker's list of switches takes a value. podman's switches are known too.
Seen in docker/cli `cli/command/container/opts.go` and `run.go`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence

from firesteel.launch import SWITCHES, Container, EngineName, Mount
from firesteel.reads.shell import NO_SPAN, Word
from firesteel.reads.source_text import SourceText
from firesteel.units import GIB, KIB, MIB, parse_size
from firesteel.values import Value, replace

_SHORT = {
    "a": "attach", "c": "cpu-shares", "d": "detach", "e": "env", "h": "hostname", "i": "interactive",
    "l": "label", "m": "memory", "P": "publish-all", "p": "publish", "q": "quiet", "t": "tty",
    "u": "user", "v": "volume", "w": "workdir",
}  # fmt: skip
_LONG = {"net": "network", "net-alias": "network-alias", "dns-opt": "dns-option"}
_COLON = re.compile(r"(?:\$\{[^}]*\}|\$\([^)]*\)|[^:])+")
_NAME_IN_ENV = re.compile(r"\$\{?([A-Za-z_]\w*)\}?\Z")


class DockerOption(Value):
    """One option as typed; a switch has no value."""

    name: str
    value: str | None
    word: Word
    following: Word | None = None
    """The next word, if that is its value; None when the value is in the word itself."""

    @property
    def words(self) -> tuple[Word, ...]:
        return (self.word, self.following) if self.following else (self.word,)


def parse_options(words: Sequence[Word]) -> tuple[tuple[DockerOption, ...], int]:
    """The options after `run`, and the index of the image (past the end when there is none)."""
    options: list[DockerOption] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word.text == "--":
            return tuple(options), index + 1
        if len(word.text) < 2 or word.text[0] != "-":
            break
        index += 1
        following = words[index] if index < len(words) else None
        parsed, taken = (_long if word.text.startswith("--") else _short)(word, following)
        options += parsed
        index += taken
    return tuple(options), index


def _long(word: Word, following: Word | None) -> tuple[list[DockerOption], int]:
    name, equals, value = word.text[2:].partition("=")
    name = _LONG.get(name, name)
    if equals:
        return [DockerOption(name, None if name in SWITCHES and value == "true" else value, word)], 0
    if name in SWITCHES:
        return [DockerOption(name, None, word)], 0
    return [DockerOption(name, following.text if following else None, word, following)], 1


def _short(word: Word, following: Word | None) -> tuple[list[DockerOption], int]:
    """Combined switches, up to the first letter that takes a value: the rest of the word is that value."""
    options: list[DockerOption] = []
    for end, letter in enumerate(word.text[1:], start=2):
        name = _SHORT.get(letter, letter)
        if name in SWITCHES:
            options.append(DockerOption(name, None, word))
            continue
        value = word.text[end:].removeprefix("=")
        if value:
            return [*options, DockerOption(name, value, word)], 0
        return [*options, DockerOption(name, following.text if following else None, word, following)], 1
    return options, 0


def environment(options: Iterable[DockerOption]) -> dict[str, str]:
    """`-e A=b`; `-e A` and `-e A="$A"` both take A from the environment, and both give `$A`."""
    variables: dict[str, str] = {}
    for option in options:
        if option.name == "env" and option.value:
            name, equals, value = option.value.partition("=")
            passed = _NAME_IN_ENV.match(value)
            variables[name] = f"${name}" if not equals or (passed and passed[1] == name) else value
    return variables


def environment_words(options: Iterable[DockerOption]) -> dict[str, Word]:
    """`-e NAME=value` -> NAME and its value as a word; variables passed on from outside are left out."""
    variables: dict[str, Word] = {}
    for option in options:
        name, equals, value = (option.value or "").partition("=")
        if option.name == "env" and equals:
            word = option.following or option.word
            start = word.text.find(f"={value}") + 1 if word.text.endswith(f"={value}") else 0
            content = SourceText(value, ((0, word.content.at(0)),))
            implied = replace(word, text=value, span=NO_SPAN, content=content)
            variables[name] = word.after(start) if start else implied
    return variables


def build_container(image: str, options: Sequence[DockerOption], program: tuple[str, ...]) -> Container:
    last = {option.name: option.value for option in options}
    mounts = (_mount(option) for option in options)
    return Container(
        image=image,
        entrypoint=last.get("entrypoint"),
        program=program,
        gpus=last.get("gpus"),
        ipc=last.get("ipc"),
        shm_bytes=_size(last.get("shm-size")),
        network=last.get("network"),
        restart=last.get("restart"),
        publish=tuple(option.value for option in options if option.name == "publish" and option.value),
        mounts=tuple(mount for mount in mounts if mount),
        labels=dict(name_and_value(option.value or "") for option in options if option.name == "label"),
        options=tuple((option.name, option.value) for option in options if not _has_field(option)),
    )


def _has_field(option: DockerOption) -> bool:
    if option.name in ("volume", "mount"):
        return _mount(option) is not None
    if option.name == "shm-size":
        return _size(option.value) is not None
    named = ("entrypoint", "gpus", "ipc", "network", "restart", "publish", "label", "env", "detach")
    return option.name in named


def name_and_value(text: str) -> tuple[str, str]:
    """`NAME=value`; the value may be missing."""
    name, _, value = text.partition("=")
    return name, value


def _size(text: str | None) -> int | None:
    try:
        return parse_size(text, docker=True) if text else None
    except ValueError:
        return None


def _mount(option: DockerOption) -> Mount | None:
    """`-v source:target[:ro]` or a simple `--mount`; None for what a Mount cannot represent."""
    if option.name == "volume" and option.value:
        parts = _COLON.findall(option.value)
        is_complete = ":".join(parts) == option.value
        if is_complete and len(parts) in (2, 3) and parts[2:] in ([], ["ro"], ["rw"]):
            return Mount(parts[0], parts[1], parts[2:] == ["ro"])
    if option.name == "mount" and option.value:
        return _long_mount(option.value)
    return None


def _long_mount(text: str) -> Mount | None:
    try:
        fields = next(csv.reader([text], strict=True), [])
    except csv.Error:
        return None
    pairs = dict(name_and_value(field) for field in fields)
    source = pairs.pop("source", None) or pairs.pop("src", None)
    target = pairs.pop("target", None) or pairs.pop("dst", None) or pairs.pop("destination", None)
    read_only = any(pairs.pop(key, "false") in ("", "1", "true") for key in ("readonly", "ro"))
    if pairs.pop("type", "volume") not in ("bind", "volume") or pairs or not source or not target:
        return None
    return Mount(source, target, read_only)


def mount_argument(mount: Mount) -> tuple[str, str]:
    """`volume`, or `mount` where docker would take a colon in a path for a separator; and its value."""
    if ":" not in mount.source + mount.target:
        return "volume", f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
    kind = "bind" if mount.source[:1] in ("/", ".", "~", "$") else "volume"
    fields = (f"type={kind}", f"source={mount.source}", f"target={mount.target}")
    return "mount", csv_row(*fields, *(("readonly",) if mount.read_only else ()))


def csv_row(*fields: str) -> str:
    """`--mount` is a row of CSV."""
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(fields)
    return row.getvalue()


def docker_size(size_bytes: int) -> str:
    """Bytes as people write them for docker: `16g`."""
    for unit, letter in ((GIB, "g"), (MIB, "m"), (KIB, "k")):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{letter}"
    return str(size_bytes)


class EngineStart(Value):
    """A container or a process to start, in terms of the command line.

    Compose files, manifests, units and other tools' recipes all describe a `docker run` or a command. Each
    reader translates its format into that; `programs` then finds the engine in it.
    """

    arguments: tuple[Word, ...]
    """The command, or the arguments after the image; those of the engine, once it is known."""
    image: Word | None = None
    """None: a process on the host itself."""
    options: tuple[DockerOption, ...] = ()
    """The `docker run` options that are equivalent to the file."""
    env: Mapping[str, Word] = {}
    """The environment of a process, or what a script in a container sets; the container's own variables are
    among the options."""
    name: str = ""
    """What the file calls it."""
    hardware: str = ""
    """The machine that it is for, where the file has a section for each."""
    minimum: Word | None = None
    """The oldest release of the engine that the file allows."""
    missing: Word | None = None
    """A file that it is based on and that is not at hand."""
    is_partial: bool = False
    """The templates of a chart may add a program and more arguments."""
    runs_with: str = ""
    """See `ReadLaunch`."""
    engine: EngineName | None = None
    """None: not known yet."""
    program: tuple[str, ...] = ()
    """What starts the engine: `vllm serve`, or a shell and its script up to the engine's arguments."""
    program_words: tuple[Word, ...] = ()
    """The words that name the program; the first is its position."""
    installed: str | None = None
    """The version that a script installs before it starts the engine."""
