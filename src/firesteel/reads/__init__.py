"""Text -> launches: what people paste, read the way the tools they paste it into would read it.

`read` takes a `docker run` line, a plain engine line, a script, a Markdown guide, a compose file, a manifest,
a unit or another tool's recipe, and gives every launch in it, with the place of each flag, variable and
option. It never runs, fetches or repairs anything, and what it cannot place it keeps as text. `render` is its
inverse.
"""

from firesteel.catalog import container_name
from firesteel.reads.launches import look, nothing_started, read
from firesteel.reads.mentions import Mention, mentions
from firesteel.reads.passage import Page, page
from firesteel.reads.programs import is_shell
from firesteel.reads.reader import Reading

__all__ = [
    "Mention", "Page", "Reading", "container_name", "is_shell", "look", "mentions", "nothing_started", "page",
    "read",
]  # fmt: skip
