"""docs/doctor.md and docs/cluster.md: their commands are run as they are written.

Those of a cluster take minutes and hosts (`cluster/test_page_as_written.py`, slow); here they are parsed.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import firesteel
from firesteel.service_file import on_nodes, read_service_file
from tests.conftest import run_firesteel

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "doctor.md"


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


def test_the_service_file_of_the_cluster_page_is_one() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", (DOCS / "cluster.md").read_text(), re.M | re.S)
    file = read_service_file("page", text)
    assert file.models["big"].nodes == 2 and on_nodes(file)["pair"].has_here
