"""Text -> launches: recognize the format, and read every launch in it."""

from __future__ import annotations

import re

from firesteel.catalog import Images
from firesteel.errors import UsageError
from firesteel.reads import formats, markdown, shell
from firesteel.reads.reader import LaunchReader, ReadLaunch
from firesteel.reads.source_text import SourceFile, SourceText, source_file

_MENTIONS_ENGINE = re.compile(r"\bvllm\b|llama-server|llama\s+serve|sglang|\b(docker|podman|nerdctl)\s")
_ACCEPTED = (
    "give a `docker run`, `podman run`, `vllm serve`, `llama-server` or `python3 -m sglang.launch_server`"
    " line, or a file with one: a script, a Markdown guide, a compose file, a manifest, a unit, a recipe"
)


def read(text: str, path: str, images: Images) -> tuple[ReadLaunch, ...]:
    """Every launch in a command line or a file; UsageError if there is none."""
    launches, problem = scan(source_file(text, path), images)
    if not launches:
        raise problem or no_launch_error(path)
    return launches


def no_launch_error(path: str) -> UsageError:
    return UsageError(f"{path} has no command that starts an engine", next=_ACCEPTED)


def scan(file: SourceFile, images: Images) -> tuple[tuple[ReadLaunch, ...], UsageError | None]:
    """Every launch of a file, and the last error among blocks that cannot be read."""
    reader = LaunchReader(file, images)
    blocks = None if formats.is_yaml(file) else markdown.blocks(file)
    problem = None
    for language, block in [("", None)] if blocks is None else blocks:
        problem = _read_block(reader, language, block) or problem
    return tuple(reader.launches), problem


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
        commands, problem = shell.split_leniently(shell.blank_out_comments(source), reader.file)
        reader.read(commands)
        return problem
    return None
