"""Text -> launches: recognize the format, and read every launch in it."""

from __future__ import annotations

import re
from typing import NamedTuple

from firesteel.catalog import Images
from firesteel.errors import UsageError
from firesteel.reads import formats, heredocs, make, markdown, notebook, shell
from firesteel.reads.not_read import NotRead, not_read
from firesteel.reads.reader import LaunchReader, ReadLaunch
from firesteel.reads.source_text import SourceFile, SourceText, source_file

_MENTIONS_ENGINE = re.compile(r"\bvllm\b|llama-server|llama\s+serve|sglang|\b(docker|podman|nerdctl)\s")
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
    reader = LaunchReader(file, images, is_script=blocks == (("", None),))
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
        return tuple(("bash", block) for block in notebook.blocks(file))
    if kind := make.kind(file.path):
        return (("bash", make.shell_text(file, kind)),)
    blocks = markdown.literal_blocks(file) if file.path.lower().endswith(".rst") else markdown.blocks(file)
    return blocks if blocks is not None else (("", None),)


def _read_block(reader: LaunchReader, language: str, block: SourceText | None) -> UsageError | None:
    """A file, or a block of a guide. The error of an unreadable block is returned: others may be readable."""
    source = block or reader.file.whole
    try:
        starts = formats.starts(reader.file, block)
    except UsageError as error:
        return error
    if starts is not None:
        for start in starts:
            reader.start(start)
    elif language in markdown.SHELLS and _MENTIONS_ENGINE.search(source.text):
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
    return None
