"""Text -> launches: what people paste, parsed the way the tool that it is meant for would parse it.

`read` takes a `docker run` line, an engine's command line, a script, a Markdown guide, a compose file, a
manifest, a unit or another tool's recipe, and returns every launch in it with the position of each flag,
variable and option. It never runs, fetches or repairs anything, and keeps what it cannot parse as text.
`render` is its inverse.
"""

from firesteel.catalog import container_name
from firesteel.reads.launches import no_launch_error, read, scan
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
    "no_launch_error",
    "read",
    "scan",
    "source_file",
]  # fmt: skip
