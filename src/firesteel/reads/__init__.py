"""Text -> launches: what people paste, read the way the tools they paste it into would read it.

`read` takes a `docker run` line, a plain engine line, a script, a Markdown guide, a compose file, a manifest,
a unit or another tool's recipe, and gives every launch in it, with the place of each flag, variable and
option. It never runs, fetches or repairs anything, and what it cannot place it keeps as text. `render` is its
inverse.
"""

from firesteel.catalog import container_name
from firesteel.reads.launches import nothing_started, read, scan
from firesteel.reads.mentions import Mention, mentions
from firesteel.reads.programs import is_shell
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.source_text import SourceFile, source_file

__all__ = [
    "Mention",
    "ReadLaunch",
    "SourceFile",
    "container_name",
    "is_shell",
    "mentions",
    "nothing_started",
    "read",
    "scan",
    "source_file",
]  # fmt: skip
