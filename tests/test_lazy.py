"""Packages whose names load at first use."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

import firesteel

PACKAGE = """\
from firesteel.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lazy_package.module import name
    from lazy_package.several import (
        first,
        second,
    )
else:
    __getattr__ = lazy_exports(__name__)
"""
SOURCE = Path(str(firesteel.__file__)).parent


def test_a_name_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "module.py").write_text("name = 1")
    (folder / "several.py").write_text("first, second = 2, 3")
    monkeypatch.syspath_prepend(str(tmp_path))
    package = import_module("lazy_package")
    assert "lazy_package.module" not in sys.modules
    assert package.name == vars(package)["name"] == 1
    assert "lazy_package.several" not in sys.modules
    assert (package.first, package.second) == (2, 3)
    with pytest.raises(AttributeError, match=r"has no attribute .other."):
        _ = package.other
    for name in ("", ".module", ".several"):
        monkeypatch.delitem(sys.modules, f"lazy_package{name}")


@pytest.mark.parametrize(
    "path", [path for path in SOURCE.rglob("__init__.py") if "lazy_exports(" in path.read_text()]
)
def test_every_name_that_type_checkers_see_is_there(path: Path) -> None:
    package = import_module(".".join(("firesteel", *path.parent.relative_to(SOURCE).parts)))
    blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        for name in node.names:
            assert getattr(package, name.name) is getattr(import_module(str(node.module)), name.name)
