"""The structure that the documentation promises, checked on the source: who does I/O, and what is unique."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

PACKAGE = Path(__file__).parents[1] / "src" / "firesteel"

PURE = (
    "catalog", "engines", "errors", "facts", "launch",
    "planner", "reads", "render", "rules", "service_file",
    "service_settings", "units", "values", "yaml_reader",
)  # fmt: skip
"""Packages and modules that decide: values in, values out."""
DOES_IO = {
    "edge": "files, processes, containers, HTTP, the Hub, pip and the host; a simulated Spark",
    "run": "starts, supervises and stops engines: processes, signals, clocks",
    "bench": "sends timed requests over its own sockets, stores results in SQLite, tries other releases",
    "gateway": "listens, forwards, starts loader processes, stores keys and requests in SQLite",
    "hosts": "runs commands on other hosts, changes settings of this one and undoes them, measures",
    "workshop": "reads and writes checkpoints; reads images as streams, builds and proves them",
    "cli": "reads the terminal and the environment, prints, draws, asks the gateway, ends on signals",
    "shipped_data": "the one reader of the shipped data files; stores them compiled beside the byte code",
    "workspace": "assembles what is known about this machine and its user, from `edge`",
    "library": "the public API over `workspace` and `run`",
    "__init__": "exports the library",
    "__main__": "starts the command line",
}
IO_MODULES = frozenset(
    {
        "aiohttp", "asyncio", "http.client", "httpx2", "os", "random", "shutil", "signal", "socket",
        "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib.request",
    }
)  # fmt: skip
IO_CALLS = frozenset(
    {
        "exists", "glob", "is_dir", "is_file", "iterdir", "mkdir", "open", "read_bytes", "read_text", "rglob",
        "stat", "unlink", "write_bytes", "write_text",
    }
)  # fmt: skip
"""Of `pathlib`, which is allowed for paths that are only written down, and the built-in `open`."""
EXCEPTIONS: dict[str, dict[str, str]] = {}
"""Pure module -> what it may import or call all the same -> the reason. None is needed today."""

MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text("utf-8"))


def member(module: str) -> str:
    """`engines/vllm/learn.py` -> `engines`, the member of the package that the module belongs to."""
    return module.split("/")[0].removesuffix(".py")


PURE_MODULES = [module for module in MODULES if member(module) in PURE]


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of everything imported, at any depth of the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def prefixes(name: str) -> set[str]:
    """`os.path` -> `os`, `os.path`."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}


def file_calls(tree: ast.Module) -> Iterator[str]:
    """Calls that reach the file system, except through `shipped_data`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            yield "open"
        elif isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "shipped_data":
            yield from {node.func.attr} & IO_CALLS


def test_every_member_is_listed() -> None:
    assert not set(PURE) & DOES_IO.keys()
    assert {member(module) for module in MODULES} == {*PURE, *DOES_IO}


@pytest.mark.parametrize("module", PURE_MODULES)
def test_a_pure_module_does_no_io(module: str) -> None:
    allowed = EXCEPTIONS.get(module, {}).keys()
    imported = {name for whole in imports(parsed(module)) for name in prefixes(whole)}
    assert not (imported & IO_MODULES) - allowed
    assert not set(file_calls(parsed(module))) - allowed
    ours = {f"firesteel.{name}" for name in DOES_IO if name not in ("shipped_data",)}
    assert not (imported & ours) - allowed, "I/O at second hand"


def test_exceptions_are_real() -> None:
    for module, allowed in EXCEPTIONS.items():
        used = {name for whole in imports(parsed(module)) for name in prefixes(whole)}
        assert allowed.keys() <= used | set(file_calls(parsed(module))), module


def test_the_check_sees_io() -> None:
    tree = ast.parse(
        "from os import path\ndef f():\n    import http.client\n    open(path)\n    x.read_text()"
    )
    assert {name for whole in imports(tree) for name in prefixes(whole)} >= {"os", "http.client"}
    assert set(file_calls(tree)) == {"open", "read_text"}
    assert not list(file_calls(ast.parse("shipped_data.read_text(name)")))


def test_the_command_line_imports_only_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    """It parses, calls one function of the library, and shows what comes back."""
    contract = Path(__file__).with_name("cli_imports.toml")
    assert lint_imports(config_filename=str(contract), no_cache=True) == 0, capsys.readouterr().out


def test_a_public_class_name_is_used_once() -> None:
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in parsed(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(module)
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}


MAY_COPY_A_LAUNCH = {
    "catalog/launches.py": "every change to a launch that runs is a step there",
    "reads/": "makes launches out of text",
    "render/": "writes a launch for another tool, in that tool's terms",
    "rules/": "compares a launch with a copy of it; the copy is never returned",
    "edge/sim/engine_config.py": "plans a simulated engine for other numbers of users",
}


def test_only_the_pipeline_changes_a_launch() -> None:
    changes = re.compile(r"\breplace\((\w+\.)*launch\b|(?<!class )\bLaunch\(")
    found = {module for module in MODULES if changes.search((PACKAGE / module).read_text("utf-8"))}
    assert {module for module in found if not module.startswith(tuple(MAY_COPY_A_LAUNCH))} == set()
    assert "catalog/launches.py" in found


def test_no_group_is_possessive() -> None:
    """Python 3.11.2, which Debian 12 has, matches `(...)*+` where it should not; `(?>(...)*)` is right
    everywhere."""
    possessive = re.compile(r"\)(?:[*+?]|\{[\d,]+\})\+")
    assert [module for module in MODULES if possessive.search((PACKAGE / module).read_text("utf-8"))] == []


def test_modules_that_docs_and_docstrings_name_exist() -> None:
    """By a path from a package (`run/pull.py`); a name alone may be a file of an engine."""
    root = PACKAGE.parents[1]
    packages = "|".join(path.name for path in PACKAGE.iterdir() if path.is_dir())
    named = re.compile(rf"`((?:{packages})/[\w/]+\.(?:py|md|js))`")
    texts = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md"), *root.glob("*.md"), *root.glob("docs/*.md")]
    missing = [
        f"{path.relative_to(root)}: {name}"
        for path in texts
        for name in named.findall(path.read_text("utf-8"))
        if not (PACKAGE / name).exists()
    ]
    assert not missing
