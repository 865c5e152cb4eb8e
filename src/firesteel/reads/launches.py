"""Text -> launches: which format it is, and every launch in it."""

from __future__ import annotations

import re

from firesteel.catalog import Images
from firesteel.errors import UsageError
from firesteel.reads import fences, formats, shell
from firesteel.reads.passage import Page, page
from firesteel.reads.reader import Reader, Reading

_MENTIONS = re.compile(r"\bvllm\b|llama-server|llama\s+serve|sglang|\b(docker|podman|nerdctl)\s")
_STARTS = re.compile(r"vllm\s+serve|llama-server|launch_server|\b(docker|podman|nerdctl)\s+run")
_ACCEPTED = (
    "give a `docker run`, `podman run`, `vllm serve`, `llama-server` or `python3 -m sglang.launch_server`"
    " line, or a file with one: a script, a Markdown guide, a compose file, a manifest, a unit, a recipe"
)


def read(text: str, path: str, images: Images) -> tuple[Reading, ...]:
    """Every launch in a command line or a file; at least one, or UsageError."""
    whole = page(text, path)
    reader = Reader(whole, images)
    problem = UsageError(f"{path} holds no command that starts an engine", next=_ACCEPTED)
    starts = formats.starts(whole)
    if starts is not None:
        for start in starts:
            reader.start(start)
    else:
        problem = _read_text(reader, whole) or problem
    if not reader.found:
        raise problem
    return tuple(reader.found)


def _read_text(reader: Reader, whole: Page) -> UsageError | None:
    """A script, or every block of a guide; one that cannot be read is passed over if others can."""
    problem = None
    blocks = fences.blocks(whole)
    for block in (whole.whole,) if blocks is None else blocks:
        try:
            lines = shell.split(block, whole) if _MENTIONS.search(block.text) else ()
        except UsageError as error:
            problem = error if _STARTS.search(block.text) else problem
        else:
            reader.read(lines)
    return problem
