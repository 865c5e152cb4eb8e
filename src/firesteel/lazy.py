"""Packages whose public names load when they are first used (PEP 562).

A supervisor lives as long as its model and must not carry the planner; `firesteel --help` must not load
pydantic. A package lists its public names by module, and pays for a module only when a name of it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

TYPE_CHECKING = False  # see `firesteel/__init__.py`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


def lazy_exports(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """A `__getattr__` for `package`, from a map: module (relative to it) -> the names that it exports."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next use finds it there
        return value

    return load
