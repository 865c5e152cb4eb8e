"""Against a real file: added samples are there, whatever happened to the process that added them."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from firesteel.bench.results.history import History, new_run_id, open_history
from firesteel.edge.home import Home
from firesteel.errors import FiresteelError, UsageError
from firesteel.values import replace
from tests.bench.stored_runs import sample, stored_run, unfinished


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_run_round_trip(home: Home) -> None:
    made = stored_run("a-run", [50.0, 51.0, 52.5], answers=("x", "y", "z"))
    with open_history(home) as history:
        history.begin(replace(made.run, figures=(), is_whole=False))
        history.add("a-run", *made.samples)
        history.finish(made.run)
    with open_history(home) as history:
        assert history.run("a-run") == made
        (line,) = history.runs()
    assert (line.id, line.points, line.samples, bool(line.is_whole)) == ("a-run", 1, 3, True)
    figure = made.run.figures[0].decode_tokens_per_s
    assert figure is not None and line.decode_tokens_per_s == figure.value
    assert (home.root / "history.db").stat().st_mode & 0o077 == 0, "a launch may carry secrets"


WRITER = """
    import sys
    from pathlib import Path
    from firesteel.bench.results.history import open_history
    from firesteel.edge.home import Home
    from tests.bench.stored_runs import sample, unfinished

    history = open_history(Home(Path(sys.argv[1])))
    history.begin(unfinished("killed"))
    for at in range(100_000):
        history.add("killed", sample(at % 2, at // 2, 50.0))
        print(at, flush=True)
"""


def _writer(home: Home, code: str = WRITER) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), str(home.root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_process_loses_nothing_that_it_had_added(home: Home) -> None:
    with _writer(home) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == 150:
                break
        with open_history(home) as other, pytest.raises(UsageError, match="another process"):
            other.resume("killed")
        os.kill(writer.pid, signal.SIGKILL)
        told = [int(line) for line in writer.stdout.read().split()]
    last = max([150, *told])
    with open_history(home) as history:
        assert not history.notes
        found = history.resume("killed")
        assert len(found.samples) in (last + 1, last + 2), "the one that it was adding may be there too"
        assert found.samples[-1].point == (len(found.samples) - 1) % 2
        assert not found.run.is_whole and len(found.run.points) == 2
        history.add("killed", sample(0, 999, 51.0))
        history.finish(replace(found.run, is_whole=True))
        assert history.run("killed").samples[-1].repetition == 999
        with pytest.raises(UsageError, match="is complete"):
            history.resume("killed")


def test_two_processes_write_at_once(home: Home) -> None:
    code = """
        import sys
        from pathlib import Path
        from firesteel.values import replace
        from firesteel.bench.results.history import new_run_id, open_history
        from firesteel.edge.home import Home
        from tests.bench.stored_runs import sample, unfinished

        run = unfinished(new_run_id())
        with open_history(Home(Path(sys.argv[1]))) as history:
            history.begin(run)
            for at in range(100):
                history.add(run.id, sample(0, at, 50.0))
            history.finish(replace(run, is_whole=True))
    """
    both = [_writer(home, code), _writer(home, code)]
    for process in both:
        process.communicate(timeout=60)
        assert process.returncode == 0
    with open_history(home) as history:
        assert [line.samples for line in history.runs()] == [100, 100]


@pytest.fixture
def history(home: Home) -> Iterator[History]:
    with open_history(home) as made:
        for at, name in enumerate(("20261114-a", "20261114-b", "20261115-c")):
            run = stored_run(name, [50.0, 51.0, 52.0]).run
            made.begin(replace(run, began=f"2026-11-15T10:00:0{at}+00:00"))
        theirs = stored_run("20261116-theirs", [1.0]).run
        made.begin(replace(theirs, began="2026-11-16T00:00:00"), origin="reported")
        yield made


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("20261115", "20261115-c"),
        ("20261114-a", "20261114-a"),
        ("last", "20261115-c"),
        ("last~1", "20261114-b"),
        ("last~2", "20261114-a"),
    ],
)
def test_how_runs_are_found(history: History, word: str, name: str) -> None:
    assert history.find(word) == name


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("20261114", "several ids: 20261114-a and 20261114-b"),
        ("last~3", "fewer than 4 runs"),
        ("x", "no run x"),
        ("%", "not the id"),
        ("", "not the id"),
        ("2026' OR 1=1 --", "not the id"),
        ("../../etc/passwd", "not the id"),
        ("a" * 10_000, "not the id"),
        ("last~99999999999999999999", "not the id"),
    ],
)
def test_invalid_run_names(history: History, word: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        history.find(word)


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden", "a\0b", "é", "x" * 81])
def test_an_id_with_a_path_creates_no_file(home: Home, history: History, name: str) -> None:
    before = sorted(home.root.rglob("*"))
    with pytest.raises(UsageError):
        history.begin(stored_run(name, [1.0]).run)
    assert sorted(home.root.rglob("*")) == before


def test_a_deleted_run_leaves_nothing(home: Home, history: History) -> None:
    history.add("20261115-c", sample(0, 0, 50.0))
    assert history.delete("20261115") == "20261115-c"
    with closing(sqlite3.connect(home.root / "history.db")) as file:
        for table in ("points", "samples", "figures"):
            assert not file.execute(f"SELECT 1 FROM {table} WHERE run = '20261115-c'").fetchall()


def test_a_run_cannot_begin_twice(history: History) -> None:
    with pytest.raises(UsageError, match="already"):
        history.begin(stored_run("20261115-c", [1.0]).run)
    with pytest.raises(FiresteelError, match="not begun here"):
        history.add("20991231-x", sample(0, 0, 1.0))


@pytest.mark.parametrize("damage", [b"not a database at all" * 100, b"\0" * 5000])
def test_a_damaged_file_is_renamed(home: Home, damage: bytes) -> None:
    home.root.mkdir()
    path = home.root / "history.db"
    path.write_bytes(damage)
    with open_history(home) as history:
        assert history.runs() == ()
        (note,) = history.notes
    assert "damaged" in note and "history.db.damaged-1" in note
    assert (home.root / "history.db.damaged-1").read_bytes() == damage
    with open_history(home) as history:
        assert history.notes == ()


def test_a_file_damaged_in_the_middle_is_renamed(home: Home) -> None:
    with open_history(home) as history:
        history.begin(unfinished("a-run"))
        history.add("a-run", *(sample(0, at, 50.0) for at in range(400)))
    path = home.root / "history.db"
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(path.stat().st_size - 8192))
    with open_history(home) as history:
        assert history.notes and history.runs() == ()


def test_a_newer_file_is_left_alone(home: Home) -> None:
    open_history(home).close()
    with closing(sqlite3.connect(home.root / "history.db")) as file:
        file.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match=r"another release of firesteel: its schema is 99") as told:
        open_history(home)
    assert told.value.next


def test_the_database_of_another_program_is_left_alone(home: Home) -> None:
    home.root.mkdir()
    with closing(sqlite3.connect(home.root / "history.db")) as file:
        file.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(UsageError, match="another program"):
        open_history(home)


def test_an_impossible_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FiresteelError) as told:
        open_history(Home(tmp_path / "file" / "home"))
    assert told.value.next


def test_a_new_run_id_is_valid(home: Home) -> None:
    names = {new_run_id() for _ in range(20)}
    assert len(names) == 20
    with open_history(home) as history:
        for name in names:
            history.begin(stored_run(name, [50.0]).run)
