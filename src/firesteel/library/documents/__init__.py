"""The documents of `--json`, each loaded when a command prints it.

    common.print_json(documents.run.PullJson.of(done=done))

Every id is `firesteel.COMMAND/N` or `firesteel.COMMAND-WHAT/N`, where WHAT is the subcommand or the option
that changes the shape. Two belong to no command: `firesteel.overview/N` (bare `firesteel`) and
`firesteel.error/N` (a command that failed). `all.py` lists them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firesteel.library.documents import (
        audit,
        bench,
        client,
        cluster,
        diagnose,
        engine,
        error,
        hosts,
        images,
        key,
        learn,
        overview,
        proposals,
        ps,
        quantize,
        recipe,
        render,
        repair,
        rules,
        run,
        serve,
        top,
        upgrade,
        usage,
    )
else:  # a type checker would take any name for one of these

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return import_module(f"{__name__}.{name}")
