"""The documents of `--json`, one module for each area, loaded when a command prints one.

    options.print_json(documents.run.PullJson.of(done=done))

They are apart from the functions because they load the types of all that an area can print. A result that is
printed as it is has no class here: it names its document itself, as `AuditReport` does. Every id is
`firesteel.COMMAND/N` or `firesteel.COMMAND-WHAT/N`, where WHAT is the subcommand or the option that changes
the shape. Two belong to no command: `firesteel.overview/N` (bare `firesteel`) and `firesteel.error/N` (a
command that failed). `all.py` lists them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firesteel.library.documents import (
        bench,
        check,
        document,
        engines,
        hosts,
        images,
        plans,
        render,
        run,
        serve,
        services,
        weights,
    )
else:  # a type checker would take any name for one of these

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return import_module(f"{__name__}.{name}")
