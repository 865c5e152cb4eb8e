"""systemd units and podman's quadlets (`NAME.container`) -> what they start.

systemd is not a shell. A backslash at the end of a line is a blank, and comments after it are skipped; quotes
keep words together and backslashes are C escapes, in both kinds of quotes; `$NAME` alone is split at its
blanks and `${NAME}` is not; `$$` and `%%` are one character each. The value of `%i` is known only at run
time. `Restart=` is systemd's own and not an option of the container.
Seen in systemd.syntax(7), systemd.service(5) and podman-systemd.unit(5), 2026-11-15.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from firesteel.reads import docker, variables
from firesteel.reads.docker import DockerOption, EngineStart
from firesteel.reads.shell import ShellCommand, Word, make_word
from firesteel.reads.source_text import SourceFile, SourceText
from firesteel.reads.template import implied_word
from firesteel.values import Value, replace

_FIRST_SECTION = re.compile(r"(?:[^\S\n]*(?:[#;][^\n]*)?\n)*[^\S\n]*\[[A-Z][\w-]*\][^\S\n]*(?:\n|\Z)")
_SECTION = re.compile(r"\[([^\]\n]*)\]\s*\Z")
_STARTING = re.compile(r"^[^\S\n]*\[(?:Service|Container)\][^\S\n]*$", re.MULTILINE)
_ENTRY = re.compile(r"\s*([A-Za-z][\w-]*)\s*=\s*", re.ASCII)
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<quote>["'])
  | \\x(?P<hex>[0-9A-Fa-f]{2})
  | \\u(?P<short>[0-9A-Fa-f]{4})
  | \\U(?P<long>[0-9A-Fa-f]{8})
  | \\(?P<octal>[0-7]{3})
  | \\(?P<letter>[abfnrtvs\\"';])
  | (?P<doubled>\$\$|%%)
  | (?P<plain>[^\s"'\\$%]+|[\\$%])
    """,
    re.VERBOSE,
)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_ALONE = re.compile(r"\$[A-Za-z_]\w*\Z", re.ASCII)
"""A variable whose value is split at its blanks."""
_PREFIXES = "-@:+!|"
_GPU = "nvidia.com/gpu="
_OPTIONS = {
    "PublishPort": "publish", "Volume": "volume", "Mount": "mount", "ShmSize": "shm-size",
    "Network": "network", "ContainerName": "name", "Memory": "memory", "Ulimit": "ulimit",
    "AddCapability": "cap-add", "GroupAdd": "group-add", "User": "user", "WorkingDir": "workdir",
    "HealthCmd": "health-cmd", "HealthInterval": "health-interval", "HealthRetries": "health-retries",
    "HealthStartPeriod": "health-start-period", "HealthTimeout": "health-timeout",
    "RunInit": "init", "Pull": "pull", "EnvironmentFile": "env-file",
}  # fmt: skip
"""Keys of a quadlet, and the docker option with the same value."""
_LISTS = {"Environment": "env", "Label": "label"}
"""Keys with several values, split into words."""


class _Entry(Value):
    section: str
    key: Word
    value: SourceText

    @property
    def name(self) -> str:
        return self.key.text


def starts(file: SourceFile, source: SourceText) -> tuple[EngineStart, ...] | None:
    """What a unit starts; None when the text is not a unit."""
    if not _FIRST_SECTION.match(source.text) or not _STARTING.search(source.text):
        return None
    entries = tuple(_entries(file, source))
    return (*_service(entries, file), *_quadlet(entries, file))


def _entries(file: SourceFile, source: SourceText) -> Iterator[_Entry]:
    section = ""
    for line in _logical_lines(source):
        header = _SECTION.match(line.text.strip())
        entry = _ENTRY.match(line.text)
        if header:
            section = header[1]
        elif entry:
            span = line.span(entry.start(1), entry.end(1))
            content = line.part(entry.start(1), entry.end(1))
            key = Word(entry[1], *file.place(span[0]), 0, len(entry[1]), span, content)
            yield _Entry(section, key, line.part(entry.end(), len(line.text.rstrip())))


def _logical_lines(source: SourceText) -> Iterator[SourceText]:
    """Lines as systemd joins them: a backslash at the end is a blank, and comments do not end a line."""
    pieces: list[tuple[str, int]] = []
    offset = 0
    for line in source.text.split("\n"):
        start, offset = offset, offset + len(line) + 1
        if line.lstrip()[:1] in ("#", ";"):
            continue
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        pieces.append((line[:-1] + " " if continues else line, start))
        if not continues:
            yield source.assemble(pieces)
            pieces = []
    if pieces:
        yield source.assemble(pieces)


def words(source: SourceText, file: SourceFile) -> tuple[Word, ...]:
    """A value, split as systemd does."""
    return tuple(_words(source, file))


def _words(source: SourceText, file: SourceFile) -> Iterator[Word]:
    pieces: list[tuple[str, int]] = []
    quote, start, was_quoted = "", -1, False
    end = 0
    for token in _TOKEN.finditer(source.text):
        if token["space"] and not quote:
            if start >= 0:
                yield make_word(pieces, source, (start, end), file, was_quoted)
            pieces, start, was_quoted = [], -1, False
            continue
        start, end = (token.start() if start < 0 else start), token.end()
        if token["quote"] and (not quote or token["quote"] == quote):
            quote, was_quoted = ("", True) if quote else (token["quote"], True)
        else:
            pieces.append((_meaning(token), token.start()))
    if start >= 0:
        yield make_word(pieces, source, (start, end), file, was_quoted)


def _meaning(token: re.Match[str]) -> str:
    code = token["hex"] or token["short"] or token["long"]
    if code or token["octal"]:
        number = int(code, 16) if code else int(token["octal"], 8)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else token[0]
    if token["letter"]:
        return _LETTERS.get(token["letter"], token["letter"])
    return token["doubled"][0] if token["doubled"] else token[0]


def _service(entries: Iterable[_Entry], file: SourceFile) -> Iterator[EngineStart]:
    """`ExecStart=` and `Environment=`: repeated, they add; an empty value discards the ones before."""
    commands: list[_Entry] = []
    env: dict[str, Word] = {}
    for entry in (entry for entry in entries if entry.section == "Service"):
        if entry.name == "ExecStart":
            commands.append(entry) if entry.value.text else commands.clear()
        elif entry.name == "Environment":
            env.update(variables.assigned(words(entry.value, file))) if entry.value.text else env.clear()
    known = {name: (word,) for name, word in env.items()}
    for entry in commands:
        for command in _commands(words(entry.value, file)):
            if command:
                yield EngineStart(_expand(command, known, file), env=env)


def _commands(all_words: tuple[Word, ...]) -> Iterator[tuple[Word, ...]]:
    """A lone semicolon separates commands; one with a backslash is a word."""
    command: list[Word] = []
    for word in all_words:
        if word.text == ";" and word.end - word.start == 1:
            yield tuple(command)
            command = []
        else:
            command.append(word)
    yield tuple(command)


def _expand(command: tuple[Word, ...], known: variables.Values, file: SourceFile) -> tuple[Word, ...]:
    """The command without its prefix and with the values of its variables."""
    path = command[0].text.lstrip(_PREFIXES)
    prefix = command[0].text[: len(command[0].text) - len(path)]
    program = command[0].after(len(prefix))
    rest = command[2:] if "@" in prefix else command[1:]
    if ":" in prefix:
        return program, *rest
    return program, *(new for word in rest for new in _substitute(word, known, file))


def _substitute(word: Word, known: variables.Values, file: SourceFile) -> tuple[Word, ...]:
    if "$" not in word.text or "$$" in file.text[slice(*word.span)]:
        return (word,)
    whole = replace(word, is_quoted=not _ALONE.match(word.text))
    return variables.expand(ShellCommand((whole,)), known, file).words


def _quadlet(entries: Iterable[_Entry], file: SourceFile) -> Iterator[EngineStart]:
    container = [entry for entry in entries if entry.section == "Container"]
    last = {entry.name: entry for entry in container}
    images = [word for entry in container if entry.name == "Image" for word in words(entry.value, file)[:1]]
    if not images:
        return
    options = tuple(option for entry in container for option in _options(entry, file))
    command = words(last["Exec"].value, file) if "Exec" in last else ()
    entrypoint = _entrypoint(last["Entrypoint"], file) if "Entrypoint" in last else ()
    options += tuple(DockerOption("entrypoint", word.text, word) for word in entrypoint[:1])
    yield EngineStart((*entrypoint[1:], *command), images[-1], options)


def _entrypoint(entry: _Entry, file: SourceFile) -> tuple[Word, ...]:
    """A path, or a JSON list of arguments."""
    try:
        arguments = json.loads(entry.value.text)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments):
        return tuple(implied_word(argument, entry.key) for argument in arguments)
    return words(entry.value, file)


def _options(entry: _Entry, file: SourceFile) -> Iterator[DockerOption]:
    values = words(entry.value, file)
    if entry.name == "PodmanArgs":
        yield from docker.parse_options(values)[0]
    elif entry.name in _LISTS:
        yield from (DockerOption(_LISTS[entry.name], word.text, word) for word in values)
    elif entry.name == "AddDevice" and values:
        device = values[0].text.removeprefix("-")
        gpu = device.removeprefix(_GPU)
        if gpu == device:
            yield DockerOption("device", device, values[0])
        else:
            yield DockerOption("gpus", gpu if gpu == "all" else f"device={gpu}", values[0])
    elif entry.name in _OPTIONS and values:
        yield DockerOption(_OPTIONS[entry.name], " ".join(word.text for word in values), values[0])
