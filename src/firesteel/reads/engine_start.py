"""What a file describes: a container or a process to start, in terms of the command line.

Compose files, manifests, units and other tools' recipes all describe a `docker run` or a command. Each
reader translates its format into that, and `reader` does the rest for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.reads.docker import DockerOption
from firesteel.reads.shell import Word
from firesteel.values import Value


class EngineStart(Value):
    arguments: tuple[Word, ...]
    """The command, or the arguments after the image."""
    image: Word | None = None
    """None: a process on the host itself."""
    options: tuple[DockerOption, ...] = ()
    """The `docker run` options that are equivalent to the file."""
    env: Mapping[str, Word] = {}
    """The environment of a process; that of a container is among its options."""
    name: str = ""
    """What the file calls it."""
    hardware: str = ""
    """The machine that it is for, where the file has a section for each."""
    minimum: Word | None = None
    """The oldest release of the engine that the file allows."""
    missing: Word | None = None
    """A file that it is based on and that is not at hand."""
    is_partial: bool = False
    """The templates of a chart may add a program and more arguments."""
    runs_with: str = ""
    """See `ReadLaunch`."""
