"""Untrusted text reaches the terminal only as printable characters: names, notes and ids from files, from
servers, and from rows that are in the history already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from firesteel.bench import measurements
from firesteel.bench.load.server import of_url
from firesteel.bench.results import other_tools, run_files
from firesteel.bench.results.history import open_history
from firesteel.edge.home import Home
from firesteel.errors import UsageError, escape_unprintable, printable, printable_json
from firesteel.values import replace
from tests.bench.stored_runs import SUBJECT, rates, stored_run
from tests.cli.inside import inside

EVIL = "pwn\x1b]0;pwn\x07\x1b[2J\x9b31m\u202egnp.\x7f[/b]"
FILES = Path(__file__).parent / "other_tools"


def is_plain(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


@given(st.text())
def test_only_printable_text_is_left(text: str) -> None:
    assert printable(text).isprintable() and len(printable(text)) == len(text)
    assert printable(printable(text)) == printable(text)


@given(st.text(), st.integers(1, 40))
def test_a_long_text_is_cut(text: str, max_chars: int) -> None:
    for short in (printable(text, max_chars), escape_unprintable(text, max_chars)):
        assert len(short) <= max_chars
    assert printable(text, len(text)) == printable(text)


def test_escapes_show_what_was_there() -> None:
    assert escape_unprintable("a\x1b[2J\u202e\ud800\n\tb\u3000c") == "a\\x1b[2J\\u202e\\ud800\n\tb\u3000c"
    assert escape_unprintable("x" * 9, 4) == "xxx…" and escape_unprintable("\0\0", 5) == "\\x00…"


def test_keys_and_values_are_cleaned() -> None:
    found = printable_json({EVIL: [EVIL, {"a": EVIL}, 1, None]})
    assert is_plain(json.dumps(found, ensure_ascii=False))
    assert "\x1b" not in str(found) and found[printable(EVIL)][2:] == [1, None]


def test_files_of_other_tools() -> None:
    benchy = json.loads((FILES / "llama-benchy-0.4.0.json").read_text())
    found = other_tools.read_results(json.dumps({**benchy, "model": EVIL, "version": EVIL}), "a.json").run
    assert is_plain(found.subject.model) and all(map(is_plain, found.notes))
    table = (FILES / "llama-benchy-0.4.0.csv").read_text().replace("smollm2", EVIL.replace("\x1b", "\x1b"))
    assert is_plain(other_tools.read_results(table, "a.csv").run.subject.model)


def test_our_own_documents_and_rows() -> None:
    made = stored_run("a", rates(50), subject=replace(SUBJECT, model=EVIL, host={"title": EVIL}))
    whole = replace(made, run=replace(made.run, notes=(EVIL,)))
    found = other_tools.read_results(json.dumps(measurements.to_document(whole)), "a.json").run
    assert is_plain(found.subject.model) and is_plain(found.notes[0])
    rows = run_files.export_text(run_files.export_rows(whole))
    (told,) = run_files.import_text(rows, f"{EVIL}.json")
    assert is_plain(told.run.subject.model) and is_plain(told.run.notes[0]) and is_plain(told.source)
    assert is_plain(str(told.run.subject.host["title"]))


async def test_a_model_with_an_unprintable_name(free_port: int) -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": EVIL}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", free_port).start()
    try:
        with pytest.raises(UsageError) as refused:
            await of_url(f"http://127.0.0.1:{free_port}", None)
    finally:
        await runner.cleanup()
    assert is_plain(refused.value.what) and is_plain(refused.value.next)


def test_old_rows_are_shown_printable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an older firesteel has kept them."""
    with open_history(Home(tmp_path)) as history:
        for name, rate in (("one", 50), ("two", 60)):
            subject = replace(SUBJECT, model=EVIL + name, version=EVIL, launch={"flags": {EVIL: name + EVIL}})
            made = stored_run(name, rates(rate), subject=subject)
            history.begin(replace(made.run, notes=(EVIL,)), "reported", EVIL)
            history.add(name, *made.samples)
    run = inside(tmp_path, monkeypatch, capsys)
    for words in (("bench", "list"), ("bench", "show", "one"), ("bench", "compare", "one", "two")):
        done = run(*words)
        assert done.code == 0 and "pwn" in done.out and is_plain(done.out + done.err), words


def test_an_id_is_not_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stored_run("a", rates(50))
    path = tmp_path / "a.json"
    path.write_text(json.dumps(measurements.to_document(replace(made, run=replace(made.run, id=f"x{EVIL}")))))
    done = inside(tmp_path, monkeypatch, capsys)("bench", "compare", str(path), str(path))
    assert done.code == 0 and is_plain(done.out) and "[/b]" in done.out
