"""Packages whose names load at first use."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from firesteel.lazy import lazy_exports


def test_a_name_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = ModuleType("lazy_package"), ModuleType("lazy_package.module")
    module.name = "first"  # type: ignore[attr-defined]
    package.__getattr__ = lazy_exports("lazy_package", {"module": ("name",)})  # type: ignore[method-assign]
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "lazy_package", package)
    monkeypatch.setitem(sys.modules, "lazy_package.module", module)
    assert package.name == "first"
    assert vars(package)["name"] == "first"
    with pytest.raises(AttributeError, match=r"has no attribute .other."):
        _ = package.other
