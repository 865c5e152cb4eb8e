"""The documents of `--json`, each loaded when a command prints it: they need pydantic, which is slow to load.

    common.print_json(documents.run.PullJson(done=done))

An attribute is the `documents` module of a package, beside the values that it shows, or a module of this
folder, for documents that belong to one command. Every id is `firesteel.COMMAND/N` or
`firesteel.COMMAND-WHAT/N`, where WHAT is the subcommand or the option that changes the shape. Two belong to
no command: `firesteel.overview/N` (bare `firesteel`) and `firesteel.error/N` (a command that failed).
`all.py` lists them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firesteel.bench import documents as bench
    from firesteel.cli.output.documents import (
        client,
        cluster,
        diagnose,
        engine,
        error,
        key,
        learn,
        overview,
        ps,
        recipe,
        render,
        serve,
        top,
        usage,
    )
    from firesteel.hosts import documents as hosts
    from firesteel.images import documents as images
    from firesteel.proposals import documents as proposals
    from firesteel.rules import documents as rules
    from firesteel.run import documents as run
    from firesteel.upgrade import documents as upgrade
    from firesteel.workshop.audit import documents as audit
    from firesteel.workshop.quantize import documents as quantize
    from firesteel.workshop.repair import documents as repair
else:  # a type checker would take any name for one of these
    _PACKAGES = (
        "bench", "hosts", "images", "proposals", "rules", "run", "upgrade",
        "workshop.audit", "workshop.quantize", "workshop.repair",
    )  # fmt: skip

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        package = {each.rpartition(".")[2]: each for each in _PACKAGES}.get(name)
        return import_module(f"firesteel.{package}.documents" if package else f"{__name__}.{name}")
