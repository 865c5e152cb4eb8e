"""What a file says is to be started: a container or a process, in the words of the command line.

Compose files, manifests, units and other tools' recipes all describe one of two things that are already
known: a `docker run` or a command. Each reader brings its format to that, and everything behind it is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from firesteel.reads.docker import DockerOption
from firesteel.reads.shell import Word


@dataclass(frozen=True, slots=True)
class EngineStart:
    words: tuple[Word, ...]
    """The command, or what stands after the image."""
    image: Word | None = None
    """None: a process on the host itself."""
    given: tuple[DockerOption, ...] = ()
    """Options of `docker run` that say the same as the file."""
    env: Mapping[str, Word] = field(default_factory=dict)
    """The environment of a process; a container's is among its options."""
    name: str = ""
    """What the file calls it."""
