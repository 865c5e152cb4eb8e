"""Stand-ins for what is compiled for CUDA, so that an engine's own Python runs on any machine.

`record-kv` and `record-sglang-kv` import engines through them. No figure that they record depends on one.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import types
from collections.abc import Callable
from typing import Any


class _Named:
    """Whatever is asked of it by name is nothing, too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class Nothing(_Named):
    """A kernel: can be named, decorated with and asked whether it is supported (it is not), never run."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __bool__(self) -> bool:
        return False

    def __call__(self, *words: Any, **_: object) -> Any:
        return words[0] if len(words) == 1 and callable(words[0]) else Nothing()


class Listing(_Named, type):
    """A class that stands in for one; a table of what was compiled: it was compiled for this."""

    def __contains__(cls, wanted: object) -> bool:
        return True


class Absent(types.ModuleType):
    __version__ = "99.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Listing(name, (Nothing,), {})


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module of which `is_absent` says so, by its name and its package's path."""

    def __init__(self, is_absent: Callable[[str, Any], bool], module: type[Absent] = Absent) -> None:
        self._is_absent, self._module = is_absent, module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        is_absent = self._is_absent(name, path)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_absent else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return self._module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def skip_fakes(kernels: tuple[str, ...]) -> None:
    """torch registers no fake for operators of these libraries, which are not there."""
    import torch

    register = torch.library.register_fake

    def register_fake(operator: Any, function: Any = None, /, **words: Any) -> Any:
        if isinstance(operator, str) and operator.startswith(kernels):
            return function or (lambda it: it)
        return register(operator, function, **words)

    torch.library.register_fake = register_fake
