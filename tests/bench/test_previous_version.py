"""Files and databases of the version before the rates were renamed (`*_tps`) are still read."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from firesteel.bench.compare.against import against_plan
from firesteel.bench.results import exchange, other_tools, serialize
from firesteel.bench.results.history import open_history
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.tune import journal as journals
from firesteel.bench.values import BenchRun
from firesteel.edge.files.history_keys import current_keys
from firesteel.edge.files.home import Home
from firesteel.edge.files.own_runs import read_own_runs

PREVIOUS = Path(__file__).parent / "previous"
RUN = "20261101-100000-0a1b"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """With the history that the previous version left there."""
    home = Home(tmp_path / "home")
    home.root.mkdir()
    file = sqlite3.connect(home.root / "history.db")
    file.executescript((PREVIOUS / "history.sql").read_text())
    file.close()
    return home


def _check_figures(run: BenchRun) -> None:
    one, four = run.figures
    assert one.decode_tokens_per_s is not None and one.decode_tokens_per_s.value == 52.5
    assert one.prefill_tokens_per_s is not None and one.prefill_tokens_per_s.value == 2000.0
    assert four.total_tokens_per_s is not None and four.total_tokens_per_s.n == 3
    assert (one.repetitions, four.repetitions) == (4, 3)
    assert one.cold["decode_tokens_per_s"] == 50.0
    assert one.server == {"decode_tokens_per_s": 53.025, "prefill_tokens_per_s": 2010.0}
    compared = {(row.point.users, row.measure): row.planned.expected for row in against_plan(run)}
    assert compared == {(1, "decode"): 50, (1, "prefill"): 2000, (1, "TTFT"): 500, (4, "decode"): 30}
    assert run.subject.launch["flags"] == {"crowd": "1"}, "the names of flags are not ours"


def _check_run(stored: StoredRun) -> None:
    _check_figures(stored.run)
    assert stored.samples[1].server_decode_tokens_per_s == pytest.approx(51.51)
    assert stored.samples[1].server_prefill_tokens_per_s == 2010.0


def test_the_history_is_read_and_written_on(home: Home) -> None:
    with open_history(home) as history:
        assert not history.notes
        stored = history.run("last")
        _check_run(stored)
        history.begin(replace(stored.run, id="new"))
        assert history.run("new").run.figures == stored.run.figures
        texts = history._file.execute("SELECT text FROM figures WHERE run = 'new'").fetchall()
    assert all('"decode_tokens_per_s":' in text and "_tps" not in text for (text,) in texts)


def test_the_planner_reads_it_before_and_after_bench_opened_it(home: Home) -> None:
    before = read_own_runs(home)
    (runs,) = before.values()
    assert {run.users: run.decode_tps[0].expected for run in runs if run.decode_tps} == {1: 52.5, 4: 32.0}
    with open_history(home):
        pass
    assert read_own_runs(home) == before


def test_an_exported_run_is_read() -> None:
    text = (PREVIOUS / "run.json").read_text()
    stored = other_tools.read(text, "run.json")
    _check_run(stored)
    again = serialize.to_document(stored)
    assert again["firesteel_run"] == 2 and "_tps" not in str(again["run"]["figures"])
    assert serialize.from_document(serialize.load_json(text, "a"), "run.json") == stored


def test_printed_json_is_read() -> None:
    _check_figures(other_tools.read((PREVIOUS / "bench.json").read_text(), "bench.json").run)


def test_exported_rows_are_read() -> None:
    (stored,) = exchange.import_text((PREVIOUS / "rows.json").read_text(), "rows.json")
    decode = stored.run.figures[0].decode_tokens_per_s
    assert decode is not None and decode.value == 52.5


def test_the_journal_of_an_interrupted_tune_is_read(home: Home) -> None:
    folder = journals.folder(home) / "20261101-110000-0a1b"
    folder.mkdir(parents=True)
    (folder / "journal.json").write_text((PREVIOUS / "journal.json").read_text())
    journal = journals.unfinished(home, "coder")
    assert journal is not None and journal.before is not None
    assert (journal.options.goal, journal.options.users) == ("throughput", 4)
    assert journal.before.ask.model == "coder" and journal.before.service_file == ""
    journals.write(home, journal)
    assert journals.read(home, journal.id) == journal
    assert '"wish"' not in (folder / "journal.json").read_text()


def test_current_keys_reach_any_depth_and_spare_the_launch() -> None:
    old = {"a": [{"visits": 1}], "launch": {"env": {"crowd": "1"}}, "at_depth": [[1024, {"low": 1}]]}
    assert current_keys(old) == {**old, "a": [{"repetitions": 1}]}
    assert current_keys({"crowd": {"each_tps": 3}}) == {"batch": {"each_tokens_per_s": 3}}
