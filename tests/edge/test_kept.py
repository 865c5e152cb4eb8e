"""Kept answers: found again only while nothing that they came from has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from firesteel.edge import kept
from firesteel.edge.files.home import Home
from firesteel.edge.kept import Answer

WORDS = {"models": ("smollm2",), "host_name": "gb10", "context": None}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    (home.catalog / "recipes").mkdir(parents=True)
    (home.catalog / "recipes" / "own.yaml").write_text("title: one\n")
    return home


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    (package / "data").mkdir(parents=True)
    (package / "data" / "rules.yaml").write_text("rules: []\n")
    return package


def same_size(path: Path, text: str) -> None:
    """Written over, and its clock set back: only the moment of the change tells."""
    before = path.stat()
    assert len(text) == before.st_size
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_the_same_things_have_the_same_name(home: Home, package: Path) -> None:
    assert kept.name(WORDS, home, {"A": "1"}, package) == kept.name(WORDS, home, {"A": "1"}, package)


def test_a_home_that_begins_with_a_kept_answer_is_no_other_home(tmp_path: Path, package: Path) -> None:
    home = Home(tmp_path / "new")
    first = kept.name(WORDS, home, {}, package)
    assert first
    kept.keep(home, first, Answer("text", 0))
    assert kept.name(WORDS, home, {}, package) == first


def model_of_huggingface(home: Home) -> None:
    """A name that firesteel has for a folder of its own, elsewhere."""
    place = home.catalog / "models/huggingface/toy.yaml"
    place.parent.mkdir(parents=True)
    place.write_text("title: toy\n")


CHANGES: dict[str, Callable[[Home, Path], object]] = {
    "a recipe of the user's, of the same size and date": lambda home, _: same_size(
        home.catalog / "recipes/own.yaml", "title: two\n"
    ),
    "a new recipe": lambda home, _: (home.catalog / "recipes/new.yaml").write_text(""),
    "a recipe gone": lambda home, _: (home.catalog / "recipes/own.yaml").unlink(),
    "a model of the org huggingface": lambda home, _: model_of_huggingface(home),
    "a rule of ours": lambda _, package: same_size(package / "data/rules.yaml", "rules: {}\n"),
    "a module of ours": lambda _, package: (package / "new.py").write_text(""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_in_the_files_changes_the_name(what: str, home: Home, package: Path) -> None:
    before = kept.name(WORDS, home, {}, package)
    CHANGES[what](home, package)
    assert before and kept.name(WORDS, home, {}, package) not in (None, before)


def test_what_runs_meanwhile_is_not(home: Home, package: Path) -> None:
    before = kept.name(WORDS, home, {}, package)
    (home.root / "services").mkdir()
    (home.root / "services/engine.log").write_text("a line")
    assert kept.name(WORDS, home, {}, package) == before


def test_words_and_environment_are_in_the_name(home: Home, package: Path) -> None:
    asked = [(WORDS, {}), ({**WORDS, "context": 8192}, {}), (WORDS, {"COLUMNS": "80"})]
    names = {kept.name(words, home, environ, package) for words, environ in asked}
    assert len(names) == len(asked) and None not in names


def test_what_a_shell_changes_at_every_prompt_is_not(home: Home, package: Path) -> None:
    here, there = {"PWD": "/a", "_": "/bin/a"}, {"PWD": "/b", "_": "/bin/b"}
    assert kept.name(WORDS, home, here, package) == kept.name(WORDS, home, there, package)


def test_what_cannot_be_looked_at_has_no_name(home: Home, package: Path) -> None:
    (home.catalog / "recipes/gone.yaml").symlink_to(home.root / "nowhere")
    assert kept.name(WORDS, home, {}, package) is None


def test_a_folder_within_itself_comes_to_an_end(home: Home, package: Path) -> None:
    (home.catalog / "again").symlink_to(home.catalog)
    kept.name(WORDS, home, {}, package)


def test_kept_and_recalled(home: Home) -> None:
    kept.keep(home, "a" * 64, Answer("fits\n", 4))
    assert kept.recall(home, "a" * 64) == Answer("fits\n", 4, lasts=True)
    assert kept.recall(home, "b" * 64) is None


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"text": "a"}',
        '{"text": 1, "code": 0}',
        '{"text": "a", "code": "0"}',
        "[" * 10**5,
        "\xff",
    ],
)
def test_a_damaged_file_is_as_good_as_none(home: Home, damage: str) -> None:
    kept.keep(home, "a", Answer("fits\n", 0))
    (place,) = (home.root / "cache/plans").iterdir()
    place.write_bytes(damage.encode("latin-1"))
    assert kept.recall(home, "a") is None
    kept.keep(home, "a", Answer("fits\n", 0))
    assert kept.recall(home, "a") == Answer("fits\n", 0, lasts=True)


def test_a_folder_that_cannot_be_written_is_no_failure(home: Home) -> None:
    (home.root / "cache").write_text("in the way")
    kept.keep(home, "a", Answer("fits\n", 0))
    assert kept.recall(home, "a") is None


def test_the_oldest_make_room(home: Home) -> None:
    for number in range(203):
        kept.keep(home, f"{number:03}", Answer("fits\n", 0))
        os.utime(home.root / f"cache/plans/{number:03}.json", (number, number))
    left = sorted(path.stem for path in (home.root / "cache/plans").iterdir())
    assert len(left) == 200 and left[-1] == "202" and "000" not in left
