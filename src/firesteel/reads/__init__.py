"""Text -> launches: what people paste, read the way the tools they paste it into would read it.

`read` takes a `docker run` line, a plain engine line, a script or a Markdown guide and gives every launch
in it, with the line that each flag, variable and option stands on. It never runs, fetches or repairs
anything, and what it cannot place it keeps as text. `render` is its inverse.
"""

from firesteel.catalog import container_name
from firesteel.reads.launches import Reading, read
from firesteel.reads.programs import is_shell

__all__ = ["Reading", "container_name", "is_shell", "read"]
