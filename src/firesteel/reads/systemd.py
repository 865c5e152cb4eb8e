"""systemd units and podman's quadlets (`NAME.container`) -> what they start.

systemd is not a shell. A backslash at the end of a line is a blank and the comments after it are skipped;
quotes keep words together and backslashes mean what they mean in C, in both kinds of quotes; `$NAME` alone is
split at its blanks and `${NAME}` is not; `$$` and `%%` are one character each. What `%i` stands for is known
where it runs. `Restart=` is systemd's own and says nothing of the container.
Seen in systemd.syntax(7), systemd.service(5) and podman-systemd.unit(5), 2026-11-15.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from firesteel.reads import docker, variables
from firesteel.reads.container_start import EngineStart
from firesteel.reads.docker import DockerOption
from firesteel.reads.shell import ShellCommand, Word
from firesteel.reads.source_text import Anchor, Passage, SourceFile
from firesteel.reads.template import implied

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
    "RunInit": "init", "Pull": "pull", "EnvironmentFile": "env-file",
}  # fmt: skip
"""Keys of a quadlet whose value is the option's value."""
_LISTS = {"Environment": "env", "Label": "label"}
"""Those whose value is several, split as words are."""


@dataclass(frozen=True, slots=True)
class _Entry:
    section: str
    key: Word
    value: Passage

    @property
    def name(self) -> str:
        return self.key.text


def starts(page: SourceFile, source: Passage) -> tuple[EngineStart, ...] | None:
    """What a unit starts; None when the text is no unit."""
    if not _FIRST_SECTION.match(source.text) or not _STARTING.search(source.text):
        return None
    entries = tuple(_entries(page, source))
    return (*_service(entries, page), *_quadlet(entries, page))


def _entries(page: SourceFile, source: Passage) -> Iterator[_Entry]:
    section = ""
    for line in _logical_lines(source):
        header = _SECTION.match(line.text.strip())
        entry = _ENTRY.match(line.text)
        if header:
            section = header[1]
        elif entry:
            span = line.span(entry.start(1), entry.end(1))
            inside = line.part(entry.start(1), entry.end(1))
            key = Word(entry[1], *page.place(span[0]), 0, len(entry[1]), span, inside)
            yield _Entry(section, key, line.part(entry.end(), len(line.text.rstrip())))


def _logical_lines(source: Passage) -> Iterator[Passage]:
    """Lines as systemd reads them: a backslash at the end is a blank, and comments do not end a line."""
    texts: list[str] = []
    anchors: list[Anchor] = []
    length = at = 0
    for raw in source.text.split("\n"):
        start, at = at, at + len(raw) + 1
        if raw.lstrip()[:1] in ("#", ";"):
            continue
        continues = (len(raw) - len(raw.rstrip("\\"))) % 2 == 1
        text = raw[:-1] + " " if continues else raw
        anchors.append((length, start))
        texts.append(text)
        length += len(text)
        if not continues:
            yield source.inner("".join(texts), anchors)
            texts, anchors, length = [], [], 0
    if texts:
        yield source.inner("".join(texts), anchors)


def words(passage: Passage, page: SourceFile) -> tuple[Word, ...]:
    """A value as systemd splits it."""
    return tuple(_words(passage, page))


def _words(passage: Passage, page: SourceFile) -> Iterator[Word]:
    pieces: list[tuple[str, int]] = []
    quote, start, was_quoted = "", -1, False
    end = 0
    for token in _TOKEN.finditer(passage.text):
        if token["space"] and not quote:
            if start >= 0:
                yield _word(pieces, passage, (start, end), page, was_quoted)
            pieces, start, was_quoted = [], -1, False
            continue
        start, end = (token.start() if start < 0 else start), token.end()
        if token["quote"] and (not quote or token["quote"] == quote):
            quote, was_quoted = ("", True) if quote else (token["quote"], True)
        else:
            pieces.append((_meaning(token), token.start()))
    if start >= 0:
        yield _word(pieces, passage, (start, end), page, was_quoted)


def _meaning(token: re.Match[str]) -> str:
    code = token["hex"] or token["short"] or token["long"]
    if code or token["octal"]:
        number = int(code, 16) if code else int(token["octal"], 8)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else token[0]
    if token["letter"]:
        return _LETTERS.get(token["letter"], token["letter"])
    return token["doubled"][0] if token["doubled"] else token[0]


def _word(
    pieces: list[tuple[str, int]],
    passage: Passage,
    bounds: tuple[int, int],
    page: SourceFile,
    was_quoted: bool,
) -> Word:
    anchors: list[Anchor] = []
    length = 0
    for text, at in pieces:
        anchors.append((length, at))
        length += len(text)
    inside = passage.inner("".join(text for text, _ in pieces), anchors or [(0, bounds[0])])
    span = passage.span(*bounds)
    return Word(inside.text, *page.place(span[0]), *bounds, span, inside, was_quoted)


def _service(entries: Iterable[_Entry], page: SourceFile) -> Iterator[EngineStart]:
    """`ExecStart=`; given twice it adds, given empty it begins anew, and so does `Environment=`."""
    commands: list[_Entry] = []
    env: dict[str, Word] = {}
    for entry in (entry for entry in entries if entry.section == "Service"):
        if entry.name == "ExecStart":
            commands.append(entry) if entry.value.text else commands.clear()
        elif entry.name == "Environment":
            env.update(_pairs(entry, page)) if entry.value.text else env.clear()
    known = {name: (word,) for name, word in env.items()}
    for entry in commands:
        for command in _commands(words(entry.value, page)):
            if command:
                yield EngineStart(_expanded(command, known, page), env=env)


def _pairs(entry: _Entry, page: SourceFile) -> dict[str, Word]:
    """`Environment="A=b c" D=e`"""
    pairs = ((word.text.partition("="), word) for word in words(entry.value, page))
    return {name: word.after(len(name) + 1) for (name, equals, _), word in pairs if equals}


def _commands(all_words: tuple[Word, ...]) -> Iterator[tuple[Word, ...]]:
    """A semicolon that stands alone parts commands; one with a backslash is a word."""
    command: list[Word] = []
    for word in all_words:
        if word.text == ";" and word.end - word.start == 1:
            yield tuple(command)
            command = []
        else:
            command.append(word)
    yield tuple(command)


def _expanded(command: tuple[Word, ...], known: variables.Values, page: SourceFile) -> tuple[Word, ...]:
    """The words of a command, without its prefix and with the values of its variables."""
    path = command[0].text.lstrip(_PREFIXES)
    prefix = command[0].text[: len(command[0].text) - len(path)]
    program = command[0].after(len(prefix))
    rest = command[2:] if "@" in prefix else command[1:]
    if ":" in prefix:
        return program, *rest
    return program, *(new for word in rest for new in _filled(word, known, page))


def _filled(word: Word, known: variables.Values, page: SourceFile) -> tuple[Word, ...]:
    if "$" not in word.text or "$$" in page.text[slice(*word.span)]:
        return (word,)
    whole = replace(word, is_quoted=not _ALONE.match(word.text))
    return variables.expand(ShellCommand((whole,)), known, page).words


def _quadlet(entries: Iterable[_Entry], page: SourceFile) -> Iterator[EngineStart]:
    ours = [entry for entry in entries if entry.section == "Container"]
    images = [found for entry in ours if entry.name == "Image" for found in words(entry.value, page)[:1]]
    if not images:
        return
    given = tuple(option for entry in ours for option in _options(entry, page))
    executes = [entry for entry in ours if entry.name == "Exec"]
    after = words(executes[-1].value, page) if executes else ()
    entrypoint = next((entry for entry in reversed(ours) if entry.name == "Entrypoint"), None)
    before = _entrypoint(entrypoint, page) if entrypoint else ()
    given += tuple(DockerOption("entrypoint", word.text, word) for word in before[:1])
    yield EngineStart((*before[1:], *after), images[-1], given)


def _entrypoint(entry: _Entry, page: SourceFile) -> tuple[Word, ...]:
    """A path, or a list of words in JSON."""
    try:
        listed = json.loads(entry.value.text)
    except (ValueError, RecursionError):
        listed = None
    if isinstance(listed, list) and all(isinstance(each, str) for each in listed):
        return tuple(implied(each, entry.key) for each in listed)
    return words(entry.value, page)


def _options(entry: _Entry, page: SourceFile) -> Iterator[DockerOption]:
    found = words(entry.value, page)
    if entry.name == "PodmanArgs":
        yield from docker.options(found)[0]
    elif entry.name in ("Environment", "Label"):
        yield from (
            DockerOption("env" if entry.name == "Environment" else "label", word.text, word) for word in found
        )
    elif entry.name == "AddDevice" and found:
        device = found[0].text.removeprefix("-")
        is_gpu = device.startswith(_GPU)
        yield (
            DockerOption("gpus", _gpus(device), found[0])
            if is_gpu
            else DockerOption("device", device, found[0])
        )
    elif entry.name in _OPTIONS and found:
        yield DockerOption(_OPTIONS[entry.name], " ".join(word.text for word in found), found[0])


def _gpus(device: str) -> str:
    """A device of the container toolkit in docker's words."""
    name = device.removeprefix(_GPU)
    return name if name == "all" else f"device={name}"
