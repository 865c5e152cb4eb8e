"""Text -> launches: what people paste, parsed the way the tool that it is meant for would parse it.

`read` takes a `docker run` line, an engine's command line, a script, a Markdown guide, a compose file, a
manifest, a unit or another tool's recipe, and returns every launch in it with the position of each flag,
variable and option. It never runs, fetches or repairs anything, and keeps what it cannot parse as text.
`render` is its inverse.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.reads.doubts import (
        chooses_program,
        find_doubt,
        may_be_fork,
        may_have_more_flags,
    )
    from firesteel.reads.launches import no_launch_error, read, scan
    from firesteel.reads.not_read import NotRead
    from firesteel.reads.programs import is_shell
    from firesteel.reads.prose_mentions import Mention, mentions
    from firesteel.reads.reader import ReadLaunch
    from firesteel.reads.source_text import SourceFile, source_file
    from firesteel.reads.stated_machine import StatedMachine, find_machine
    from firesteel.reads.stated_release import StatedRelease, find_release
    from firesteel.reads.surroundings import Surroundings
else:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(__name__)
