"""The compiled data: used while no file has changed, and never trusted further than that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel import shipped_data
from firesteel.errors import InvalidFile
from firesteel.values import FileValue

PARSED: list[str] = []


class Words(FileValue):
    words: list[str]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with two data files."""
    (tmp_path / "data" / "rules").mkdir(parents=True)
    (tmp_path / "data" / "rules" / "a.yaml").write_text("words: [one, two]\n")
    (tmp_path / "data" / "b.yaml").write_text("words: []\n")
    monkeypatch.setattr(shipped_data, "PACKAGE", tmp_path)
    monkeypatch.setattr(shipped_data, "DATA", tmp_path / "data")
    monkeypatch.setattr(shipped_data, "BUILT", tmp_path / "data.json")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parse = shipped_data._parse

    def counted(data: Path, name: str) -> object:
        PARSED.append(name)
        return parse(data, name)

    monkeypatch.setattr(shipped_data, "_parse", counted)
    PARSED.clear()
    yield tmp_path
    shipped_data._files.cache_clear()


def load() -> list[str]:
    shipped_data._files.cache_clear()  # as in another process
    return shipped_data.load("rules/a.yaml", Words).words


def test_it_is_compiled_once(package: Path) -> None:
    assert load() == load() == ["one", "two"]
    assert PARSED == ["b.yaml", "rules/a.yaml"]
    assert list(shipped_data.names("rules")) == ["rules/a.yaml"]


def test_it_is_compiled_again_when_a_file_changes(package: Path) -> None:
    load()
    (package / "data" / "rules" / "a.yaml").write_text("words: [three]\n")
    assert load() == ["three"] and len(PARSED) == 4


def test_it_is_compiled_again_when_a_file_comes_or_goes(package: Path) -> None:
    load()
    (package / "data" / "rules" / "c.yaml").write_text("x: 1\n")
    load()
    assert list(shipped_data.names("rules")) == ["rules/a.yaml", "rules/c.yaml"]
    (package / "data" / "rules" / "c.yaml").unlink()
    load()
    assert list(shipped_data.names("rules")) == ["rules/a.yaml"]


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b'{"sources": "", "files": {}}', b"\xff"])
def test_a_damaged_file_is_compiled_again(package: Path, content: bytes) -> None:
    load()
    (package / "__pycache__" / "data.json").write_bytes(content)
    assert load() == ["one", "two"] and len(PARSED) == 4
    assert load() == ["one", "two"] and len(PARSED) == 4


def test_a_file_that_others_can_write_is_not_used(package: Path) -> None:
    load()
    cached = package / "__pycache__" / "data.json"
    cached.write_bytes(cached.read_bytes().replace(b"one", b"bad"))
    assert load() == ["bad", "two"]
    cached.chmod(0o666)
    assert load() == ["one", "two"]


def test_a_read_only_package_is_compiled_into_the_users_folder(package: Path) -> None:
    (package / "__pycache__").write_text("no folder")  # cannot be made, also not by root
    load()
    assert (package / "cache" / "firesteel" / "data" / "data.json").is_file()
    assert load() == ["one", "two"] and len(PARSED) == 2


def test_no_byte_code_no_file(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    load()
    load()
    assert len(PARSED) == 4 and not list(package.rglob("data.json"))


def test_what_a_wheel_brings_is_used_without_a_look_at_the_files(package: Path) -> None:
    (package / "data.json").write_bytes(shipped_data.compile_data(package / "data"))
    PARSED.clear()
    (package / "data" / "rules" / "a.yaml").write_text("words: [three]\n")
    assert load() == ["one", "two"] and not PARSED


def test_a_mistake_in_a_shipped_file_has_its_line(package: Path) -> None:
    (package / "data" / "rules" / "a.yaml").write_text("words: []\nmore: 1\n")
    with pytest.raises(InvalidFile, match=r"rules/a\.yaml:2: `more`: no such key"):
        load()


def test_shipped_files_are_found() -> None:
    assert "rules/vllm.yaml" in list(shipped_data.names("rules"))
    assert "COLUMNS_GPU" in shipped_data.read_text("checks/probe.sh")
