"""Text -> launches: recognize the format, and read every launch in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.reads import formats, heredocs, make, markdown, notebook, shell
from firesteel.reads.not_read import NotRead, not_read
from firesteel.reads.reader import LaunchReader, ReadLaunch
from firesteel.reads.source_text import SourceFile, SourceText, source_file

if TYPE_CHECKING:
    from firesteel.reads.nodes import Node

_MENTIONS_ENGINE = re.compile(r"(?i:vllm|llama[-_]server|llama\s+serve|sglang)|\b(?:docker|podman|nerdctl)\s")
_SCRIPT_VALUE = re.compile(r"(?:^\s*-\s+|\b(?:run|script|setup|bash|shell)\s*:\s*)\|[+-]?\d?\s*$")
"""The line above a script in YAML, which keeps its line ends. After `>` somebody joins them."""
_ACCEPTED = (
    "give a `docker run`, `podman run`, `vllm serve`, `llama-server` or `python3 -m sglang.launch_server`"
    " line, or a file with one: a script, a Markdown guide, a compose file, a manifest, a unit, a recipe"
)


class Scan(NamedTuple):
    launches: tuple[ReadLaunch, ...]
    problem: UsageError | None = None
    """The last error among blocks that cannot be read."""
    unread: tuple[NotRead, ...] = ()
    """What looks like a launch and could not be read."""


def read(text: str, path: str, images: Images) -> tuple[ReadLaunch, ...]:
    """Every launch in a command line or a file; UsageError if there is none."""
    launches, problem, _ = scan(source_file(text, path), images)
    if not launches:
        raise problem or no_launch_error(path)
    return launches


def no_launch_error(path: str) -> UsageError:
    return UsageError(f"{path} has no command that starts an engine", next=_ACCEPTED)


def scan(file: SourceFile, images: Images) -> Scan:
    """Every launch of a file, and what may be one but could not be read."""
    try:
        blocks = _blocks(file)
    except UsageError as error:
        return Scan((), error, not_read(file, (), error))
    reader = LaunchReader(file, images, is_script=blocks == (("", None),) and not formats.is_yaml(file))
    problem = None
    for language, block in blocks:
        problem = _read_block(reader, language, block) or problem
    launches = tuple(reader.launches)
    return Scan(launches, problem, not_read(file, launches, problem, reader.missing))


def _blocks(file: SourceFile) -> tuple[tuple[str, SourceText | None], ...]:
    """The parts of a file that are read one by one: None stands for the whole file."""
    if formats.is_yaml(file):
        return (("", None),)
    if file.path.lower().endswith(".ipynb"):
        return notebook.blocks(file)
    if kind := make.kind(file.path):
        return (("bash", make.shell_text(file, kind)),)
    is_rst = file.path.lower().endswith(".rst")
    blocks = markdown.literal_blocks(file.whole) if is_rst else markdown.blocks(file.whole)
    return blocks if blocks is not None else (("", None),)


def _read_block(reader: LaunchReader, language: str, block: SourceText | None) -> UsageError | None:
    """A file, or a block of a guide. The error of an unreadable block is returned: others may be readable."""
    source = block or reader.file.whole
    try:
        documents = formats.parse(reader.file, block)
        if documents is not None:
            starts = formats.yaml_starts(reader.file, block, documents)
        else:
            starts = formats.text_starts(reader.file, source)
    except UsageError as error:
        return error
    for start in starts or ():
        reader.start(start)
    if not _mentions_engine(source.text):
        return None
    count = len(reader.launches)
    if documents is not None:
        _read_embedded(reader, documents)
    if starts is None and len(reader.launches) == count and language in markdown.SHELLS:
        is_script = block is None and not reader.file.path.lower().endswith(markdown.GUIDES)
        return _read_shell(reader, source, is_for_shell=is_script or language in markdown.MARKED_SHELLS)
    return None


def _mentions_engine(text: str) -> bool:
    return "vllm" in text or "sglang" in text or _MENTIONS_ENGINE.search(text) is not None


def _read_embedded(reader: LaunchReader, documents: Iterable[Node]) -> None:
    """Guides and scripts in values of a YAML file, where no launch of its own format was read."""
    ranges = [launch.lines for launch in reader.launches]
    for text in formats.embedded_texts(documents):
        if not _mentions_engine(text.text):
            continue
        first, last = (reader.file.place(text.at(offset))[0] for offset in (0, max(len(text.text) - 1, 0)))
        if any(a <= last and first <= b for a, b in ranges):
            continue
        blocks = markdown.blocks(text)
        if blocks is None and markdown.starts_command(text.text):
            blocks = (("", text),)
        is_script = _SCRIPT_VALUE.search(reader.file.line(max(first - 1, 1))) is not None
        for language, inner in blocks or ():
            if language in markdown.SHELLS:
                _read_shell(reader, inner, is_for_shell=is_script or language in markdown.MARKED_SHELLS)


def _read_shell(reader: LaunchReader, source: SourceText, *, is_for_shell: bool = False) -> UsageError | None:
    reader.is_for_shell = is_for_shell
    source = shell.blank_out_comments(source)
    for body, is_read in heredocs.bodies(source):
        found = formats.starts(reader.file, body)
        if found is not None:
            for start in found:
                reader.start(start)
            source = heredocs.blank_out(source, is_read)
    commands, problem = shell.split_leniently(source, reader.file)
    reader.read(commands)
    return problem
