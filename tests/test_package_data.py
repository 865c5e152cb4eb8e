"""The cache of compiled data: used when nothing has changed, and never trusted further than that."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from firesteel import package_data

BUILT: list[str] = []


def build(name: str, text: str) -> list[str]:
    BUILT.append(name)
    return text.splitlines()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one module and one data file."""
    (tmp_path / "data" / "rules").mkdir(parents=True)
    (tmp_path / "data" / "rules" / "a.yaml").write_text("one\ntwo\n")
    (tmp_path / "module.py").write_text("")
    monkeypatch.setattr(package_data, "PACKAGE", tmp_path)
    monkeypatch.setattr(package_data, "DATA", tmp_path / "data")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package_data._code_version.cache_clear()
    BUILT.clear()
    return tmp_path


def load() -> list[str]:
    package_data._code_version.cache_clear()  # as in another process
    return package_data.load("rules/a.yaml", build)


def test_it_is_built_once(package: Path) -> None:
    assert load() == load() == ["one", "two"]
    assert BUILT == ["rules/a.yaml"]
    assert list(package_data.names("rules")) == ["rules/a.yaml"]


def test_it_is_built_again_when_the_data_or_the_code_changes(package: Path) -> None:
    load()
    (package / "data" / "rules" / "a.yaml").write_text("three\n")
    assert load() == ["three"]
    (package / "module.py").write_text("changed = True\n")
    assert load() == ["three"]
    assert len(BUILT) == 3


@pytest.mark.parametrize("content", [b"", b"garbage", b"x" * 16 + b"not a pickle"])
def test_a_damaged_cache_is_built_again(package: Path, content: bytes) -> None:
    load()
    (cached,) = (package / "__pycache__").glob("*.pickle")
    cached.write_bytes(cached.read_bytes()[:16] + content)
    assert load() == ["one", "two"] and len(BUILT) == 2
    assert load() == ["one", "two"] and len(BUILT) == 2


def test_a_file_that_others_can_write_is_not_unpickled(package: Path) -> None:
    load()
    (cached,) = (package / "__pycache__").glob("*.pickle")
    cached.write_bytes(cached.read_bytes()[:16] + pickle.dumps(["evil"]))
    cached.chmod(0o666)
    assert load() == ["one", "two"]


def test_a_read_only_package_is_cached_in_the_users_folder(package: Path) -> None:
    (package / "__pycache__").write_text("no folder")  # cannot be made, also not by root
    load()
    assert list((package / "cache" / "firesteel" / "data").glob("*.pickle"))
    assert load() == ["one", "two"] and len(BUILT) == 1


def test_no_byte_code_no_cache(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    load()
    load()
    assert len(BUILT) == 2 and not list(package.rglob("*.pickle"))


def test_shipped_files_are_found() -> None:
    assert "rules/vllm.yaml" in package_data.names("rules")
    assert "\nrules:" in package_data.read_text("rules/vllm.yaml")
