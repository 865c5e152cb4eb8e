"""Text -> launches: which format it is, and every launch in it."""

from __future__ import annotations

import re

from firesteel.catalog import Images
from firesteel.errors import UsageError
from firesteel.reads import formats, markdown, shell
from firesteel.reads.reader import LaunchReader, ReadLaunch
from firesteel.reads.source_text import Passage, SourceFile, source_file

_MENTIONS = re.compile(r"\bvllm\b|llama-server|llama\s+serve|sglang|\b(docker|podman|nerdctl)\s")
_ACCEPTED = (
    "give a `docker run`, `podman run`, `vllm serve`, `llama-server` or `python3 -m sglang.launch_server`"
    " line, or a file with one: a script, a Markdown guide, a compose file, a manifest, a unit, a recipe"
)


def read(text: str, path: str, images: Images) -> tuple[ReadLaunch, ...]:
    """Every launch in a command line or a file; at least one, or UsageError."""
    found, problem = scan(source_file(text, path), images)
    if not found:
        raise problem or nothing_started(path)
    return found


def nothing_started(path: str) -> UsageError:
    return UsageError(f"{path} holds no command that starts an engine", next=_ACCEPTED)


def scan(whole: SourceFile, images: Images) -> tuple[tuple[ReadLaunch, ...], UsageError | None]:
    """Every launch of a page, and what was wrong with a block that cannot be read."""
    reader = LaunchReader(whole, images)
    blocks = None if formats.is_yaml(whole) else markdown.blocks(whole)
    if blocks is None:
        problem = _read_block(reader, "", None)
    else:
        problems = [_read_block(reader, language, block) for language, block in blocks]
        problem = next((each for each in reversed(problems) if each), None)
    return tuple(reader.found), problem


def _read_block(reader: LaunchReader, language: str, block: Passage | None) -> UsageError | None:
    """A file, or a block of a guide; a block that cannot be read is passed over if others can."""
    whole = block or reader.page.whole
    try:
        starts = formats.starts(reader.page, block)
    except UsageError as error:
        return error
    if starts is not None:
        for start in starts:
            reader.start(start)
    elif language in markdown.SHELLS and _MENTIONS.search(whole.text):
        lines, problem = shell.split_leniently(shell.without_silent_text(whole), reader.page)
        reader.read(lines)
        return problem
    return None
