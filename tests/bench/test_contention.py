"""Benches that measure one server at the same time are told of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.bench.load.contention import NOTE, watch_contention
from firesteel.bench.results.history import open_history
from firesteel.edge.home import Home
from tests.bench.faulty_server import FaultyServer
from tests.cli.inside import inside
from tests.cli.test_bench import QUICK, lying

URL = "http://127.0.0.1:8000"


def test_both_runs_get_the_note(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with watch_contention(home, URL, "one") as first:
        assert first() == ()
        with watch_contention(home, "http://LOCALHOST:8000/v1", "two") as second:
            assert first() == second() == (NOTE,)
        with watch_contention(home, "http://127.0.0.1:8001", "three") as other:
            assert other() == ()
        assert first() == (NOTE,), "it was so, though the other is gone"
    with watch_contention(home, URL, "four") as later:
        assert later() == ()
    assert not list((tmp_path / "locks").iterdir())


def test_files_of_a_killed_process_do_not_matter(tmp_path: Path) -> None:
    with watch_contention(Home(tmp_path), URL, "one"):
        (lock,) = (tmp_path / "locks").glob("*.lock")
    lock.touch()
    with watch_contention(Home(tmp_path), URL, "two") as others:
        assert others() == ()


def test_a_run_has_the_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "home")
    here = inside(home.root, monkeypatch, capsys)
    with lying(FaultyServer(token_s=0)) as url:
        alone = here("bench", "--url", url, *QUICK, "--json")
        with watch_contention(home, url, "another") as other:
            beside = here("bench", "--url", url, *QUICK, "--json")
            assert other() == (NOTE,)
    assert NOTE not in alone.json["notes"] and NOTE in beside.json["notes"]
    with open_history(home) as history:
        assert NOTE in history.run(beside.json["id"]).run.notes
