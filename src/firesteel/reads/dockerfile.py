"""A Dockerfile -> what a container of its image starts: one start for each stage with CMD or ENTRYPOINT.

The image of a stage is that of its FROM line; a stage that begins with another one inherits its variables
and its ENTRYPOINT. `ARG` defaults fill variables. GPUs and shared memory are chosen at `docker run`, so
they count as given here.
Seen in the Dockerfile reference and in moby/buildkit `frontend/dockerfile`, 2026-11-16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firesteel.errors import UsageError
from firesteel.reads import shell, variables
from firesteel.reads.docker import DockerOption, EngineStart
from firesteel.reads.shell import Word, make_word
from firesteel.reads.source_text import SourceFile, SourceText
from firesteel.reads.template import implied_word
from firesteel.values import Value, replace

_START = re.compile(r"(?:[^\S\n]*(?:#[^\n]*|ARG\s[^\n]*)?\n)*[^\S\n]*FROM[^\S\n]+\S", re.IGNORECASE)
_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_EXEC_FORM = re.compile(r'\s*\[\s*(?>(?:"(?:[^"\\]|\\.)*"\s*+,?\s*+)*)\]\s*\Z')
MAX_STAGES = 100


class _Stage(Value):
    image: Word
    env: tuple[DockerOption, ...] = ()
    entrypoint: tuple[Word, ...] | None = None
    command: tuple[Word, ...] = ()
    known: variables.Values = {}
    has_start: bool = False
    """It has a CMD or an ENTRYPOINT of its own."""


def starts(file: SourceFile, source: SourceText) -> tuple[EngineStart, ...] | None:
    """None when the text is not a Dockerfile."""
    if not _START.match(source.text):
        return None
    stages: dict[str, _Stage] = {}
    stage: _Stage | None = None
    arguments: dict[str, tuple[Word, ...]] = {}
    name = ""
    for line in _logical_lines(source):
        instruction = _INSTRUCTION.match(line.text)
        if instruction is None or len(stages) > MAX_STAGES:
            continue
        rest = line.part(instruction.end(), len(line.text.rstrip()))
        kind = instruction[1].upper()
        if kind == "FROM":
            stage, name = _from(_words(rest, file), stages, arguments, file)
        elif kind == "ARG":
            values = {key: (word,) for key, word in variables.assigned(_words(rest, file)).items()}
            arguments |= values
            stage = replace(stage, known={**stage.known, **values}) if stage else None
        elif stage:
            stage = _apply(kind, rest, stage, file)
        if stage:
            stages[name] = stage
    return tuple(_start(stage, name) for name, stage in stages.items() if stage.has_start)


def _logical_lines(source: SourceText) -> Iterator[SourceText]:
    """A backslash at the end continues a line, and comment lines in between are dropped."""
    pieces: list[tuple[str, int]] = []
    offset = 0
    for line in source.text.split("\n"):
        start, offset = offset, offset + len(line) + 1
        if line.lstrip().startswith("#") or (pieces and not line.strip()):
            continue
        continues = line.rstrip().endswith("\\")
        pieces.append((line.rstrip()[:-1] + " " if continues else line, start))
        if not continues:
            yield source.assemble(pieces)
            pieces = []
    if pieces:
        yield source.assemble(pieces)


def _words(source: SourceText, file: SourceFile) -> tuple[Word, ...]:
    try:
        return shell.words(source, file)
    except UsageError:
        return ()


def _from(
    words: tuple[Word, ...], stages: dict[str, _Stage], known: variables.Values, file: SourceFile
) -> tuple[_Stage | None, str]:
    plain = [word for word in words if not word.text.startswith("--")]
    if not plain:
        return None, ""
    (image, *_) = variables.expand(shell.ShellCommand((plain[0],)), known, file).words or (plain[0],)
    name = plain[2].text if len(plain) > 2 and plain[1].text.upper() == "AS" else str(len(stages))
    base = stages.get(image.text)
    return (replace(base, has_start=False) if base else _Stage(image)), name


def _apply(kind: str, rest: SourceText, stage: _Stage, file: SourceFile) -> _Stage:
    if kind == "ENV":
        pairs = variables.assigned(_words(rest, file))
        if not pairs and len(words := _words(rest, file)) > 1:  # the old form: ENV NAME value
            pairs = {words[0].text: words[1]}
        options = tuple(DockerOption("env", f"{name}={word.text}", word) for name, word in pairs.items())
        known = {**stage.known, **{name: (word,) for name, word in pairs.items()}}
        return replace(stage, env=(*stage.env, *options), known=known)
    if kind == "ENTRYPOINT":
        return replace(stage, entrypoint=_command(rest, file), command=(), has_start=True)
    if kind == "CMD":
        return replace(stage, command=_command(rest, file), has_start=True)
    return stage


def _command(rest: SourceText, file: SourceFile) -> tuple[Word, ...]:
    """`["a", "b"]`, or a line for a shell."""
    if _EXEC_FORM.match(rest.text):
        return tuple(
            make_word(((string[1].replace('\\"', '"'), string.start(1)),), rest, string.span(), file, True)
            for string in _STRING.finditer(rest.text)
        )
    script = make_word(((rest.text, 0),), rest, (0, len(rest.text)), file, True)
    return (implied_word("/bin/sh", script), implied_word("-c", script), script)


def _start(stage: _Stage, name: str) -> EngineStart:
    options = [*stage.env, DockerOption("gpus", "all", stage.image), DockerOption("ipc", "host", stage.image)]
    entrypoint = stage.entrypoint or ()
    if stage.entrypoint is not None:  # `ENTRYPOINT []` removes the one of the image
        first = entrypoint[0] if entrypoint else implied_word("", stage.image)
        options.append(DockerOption("entrypoint", first.text, first))
    is_shell_form = len(entrypoint) == 3 and entrypoint[0].text == "/bin/sh"
    arguments = entrypoint[1:] if is_shell_form else (*entrypoint[1:], *stage.command)
    return EngineStart(arguments, stage.image, tuple(options), name=name)
