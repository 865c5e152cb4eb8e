"""docs/doctor.md: its commands are run as they are written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import firesteel
from tests.conftest import run_firesteel

PAGE = Path(__file__).parents[2] / "docs/doctor.md"


def test_the_commands_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ firesteel (.*)$", PAGE.read_text(), re.M)
    assert len(commands) > 12
    for line in commands:
        words = shlex.split(line, comments=True)
        if "--measure" in words:  # reads 18 GB; test_measure.py does it with a smaller file
            continue
        code = 5 if "exit code 5" in line else 0
        ran = run_firesteel(tmp_path / "home", *words)
        assert ran.code == code, f"{line}\n{ran.out}{ran.err}"


def test_the_library_has_what_the_page_shows() -> None:
    assert "firesteel.doctor()" in PAGE.read_text()
    assert firesteel.doctor(["heat"]).findings[0].check == "heat"
