"""Packages whose public names load when they are first used (PEP 562).

    if TYPE_CHECKING:
        from firesteel.facts.host.host import Gpu, Host
    else:
        __getattr__ = lazy_exports(__name__)

A supervisor lives as long as its model and must not carry the planner; `firesteel --help` must not load
msgspec. Such a package imports its public names for type checkers alone, and pays for a module only when a
name of it is used. The imports are the one list of these names: they are found in the package's own source,
which takes 30 microseconds, once.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # see `firesteel/__init__.py`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def lazy_exports(package: str) -> Callable[[str], Any]:
    """A `__getattr__` for `package`."""
    module_of: dict[str, str] = {}

    def load(name: str) -> Any:
        if not module_of:
            module_of.update(_exports(package))
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)  # the next use finds it there
        return value

    return load


def _exports(package: str) -> dict[str, str]:
    """Name -> the module that has it, from the indented imports of the package."""
    from pathlib import Path  # not at the start of every command, where a Ctrl-C would be a traceback

    found: dict[str, str] = {}
    for statement in Path(str(sys.modules[package].__file__)).read_text("utf-8").split("\n    from ")[1:]:
        module, _, names = statement.partition(" import ")
        names = names[1:].partition(")")[0] if names.startswith("(") else names.partition("\n")[0]
        found |= dict.fromkeys(names.replace(",", " ").split(), module)
    return found
