"""`firesteel bench`: options, table, document, history. tests/run/test_real_service.py has a real engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import pytest

from firesteel.bench.load.measure import RunOrder
from firesteel.bench.results.history import open_history
from firesteel.edge.home import Home
from firesteel.errors import UsageError
from firesteel.library.documents.all import schemas
from firesteel.values import replace
from tests.bench.faulty_server import FaultyServer, serving
from tests.cli.inside import inside
from tests.conftest import Firesteel
from tests.edge.sim.spark import until

POINT = ("--users", "1", "--depth", "64", "--answer", "16", "--text", "prose")
QUICK = (*POINT, "--budget", "2m", "--precision", "90%")
"""It ends after seven repetitions, however long they take on a busy machine."""


@contextmanager
def lying(liar: FaultyServer) -> Iterator[str]:
    """A server in a thread of its own, because the command under test has its own event loop."""
    result: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def main() -> None:
        async with serving(liar) as url:
            result.append(url)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(120)
    try:
        yield result[0]
    finally:
        over.set()
        thread.join(120)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Firesteel:
    return inside(tmp_path / "home", monkeypatch, capsys)


def test_find_tells_the_highest_load(here: Firesteel) -> None:
    sizes = ("--depth", "40", "--answer", "8", "--budget", "10s")
    with lying(FaultyServer(token_s=0)) as url:
        done = here("bench", "--url", f"{url}/v1", "--find", "ttft=60s", *sizes, "--json")
        wrong = here("bench", "--url", f"{url}/v1", "--find", "ttft=60s", "--users", "4")
        both = here("bench", "--url", f"{url}/v1", "--find", "ttft=60s", "--depth", "40,50")
    assert done.code == 0 and done.json is not None
    jsonschema.validate(done.json, schemas()["firesteel.bench/1"])
    users, rate = done.json["found"]
    assert users["holds"] >= 1 and users["kind"] == "users" and rate["kind"] == "requests per second"
    assert done.json["settings"]["target"] == {"ttft_ms": 60_000}
    shown = here("bench", "show")
    # A machine that is busy enough has the time to try one user only.
    most = "one user holds" if users["holds"] == 1 else f"up to {users['holds']:g} users hold"
    assert f"find    {most}" in shown.out, "it is stored with the run"
    assert wrong.code == both.code == 2
    assert "does not go with --users" in wrong.err and "one --depth" in both.err


def test_find_at_a_server_that_fails(here: Firesteel) -> None:
    with lying(FaultyServer("500")) as url:
        ran = here("bench", "--url", f"{url}/v1", "--find", "ttft=60s", "--budget", "10s")
    text = " ".join(ran.out.split())
    assert ran.code == 1 and "no number of users that was tried certainly holds" in text
    assert "requests failed: HTTP 500" in text and "were not looked for" in text


def test_own_prompts_are_measured(here: Firesteel, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Why is the sky blue?"}\n{"prompt": "Why is the sea salty?"}\n')
    asked = ("--prompts", str(file), "--users", "1", "--answer", "8", "--budget", "1m", "--precision", "90%")
    server = FaultyServer(token_s=0)
    with lying(server) as url:
        shown = here("bench", "--url", f"{url}/v1", *asked)
        depth = here("bench", "--url", f"{url}/v1", *asked, "--depth", "64")
        file.write_text('{"prompt": 5}')
        broken = here("bench", "--url", f"{url}/v1", *asked)
    assert shown.code == 0 and "mine.jsonl" in shown.out, shown.err
    sent = {each["messages"][0]["content"] for each in server.asked}
    assert sent == {"Why is the sky blue?", "Why is the sea salty?"}
    assert depth.code == broken.code == 2
    assert "leave out --depth" in depth.err and "line 1, `prompt` has no text" in broken.err


def test_any_endpoint_is_measured_and_kept(here: Firesteel, tmp_path: Path) -> None:
    with lying(FaultyServer(token_s=0.004)) as url:
        ran = here("bench", "--url", f"{url}/v1", *QUICK, "--json")
        assert ran.code == 0, ran.err
        files = ("--csv", str(tmp_path / "a.csv"), "--markdown", str(tmp_path / "a.md"))
        shown = here("bench", "--url", url, *QUICK, "--cold", "--target", "ttft=1s,token=20ms", *files)
        nowhere = here("bench", "--url", url, "--csv", str(tmp_path / "none" / "a.csv"))
    (figures,) = ran.json["figures"]
    assert ran.json["document"] == "firesteel.bench/1"
    assert figures["samples"] > 0 and figures["ttft_ms"]["p50"] > 0
    assert figures["point"]["prompt_tokens"] == 64 and not figures["wrong"]
    assert ran.json["settings"]["seed"] == 0 and ran.json["subject"]["plan"] == {}
    assert "bench   asking how the server counts tokens" in ran.err
    with open_history(Home(tmp_path / "home")) as history:
        stored = history.run(ran.json["id"])
        assert len(history.runs()) == 2
    assert len(stored.samples) >= figures["samples"] and stored.run.is_whole
    assert stored.run.figures[0].ttft_mean_ms is not None
    assert shown.code == 0 and "tok/s" in shown.out, shown.out
    assert "±" in shown.out or "(once)" in shown.out, "a busy machine has time for one repetition only"
    assert "cold" in shown.out and "requests/s within the target" in shown.out
    assert "ms late under load (p99)" in shown.out
    assert (tmp_path / "a.csv").read_text().startswith("run,began,origin,model,")
    report = (tmp_path / "a.md").read_text()
    # Where the client was woken up so late that tokens came in one piece, no decode rate is told.
    assert "| load | decode tok/s |" in report or ("late" in report and "| load | TTFT ms |" in report)
    assert nowhere.code == 2 and "another path for --csv" in nowhere.err
    page = tmp_path / "history.html"
    assert here("bench", "chart", "--html", str(page)).code == 0 and "<svg" in page.read_text()
    unknown = here("bench", "chart", "none", "--html", str(page))
    assert unknown.code == 2 and "no run of none" in unknown.err
    for format in ("json", "csv", "markdown", "llama-benchy", "llama-benchy-csv"):
        exported = here("bench", "export", "last", "--as", format)
        assert exported.code == 0 and "faulty" in exported.out, exported.err
    written = here("bench", "export", "last", "--json", "--file", str(tmp_path / "runs.json"))
    assert written.json == json.loads((tmp_path / "runs.json").read_text())


def test_a_budget_that_is_too_short_is_refused_and_the_run_continues(here: Firesteel) -> None:
    """An answer takes 1.7 s here: two do not fit into 2 s, and the first does not count."""
    with lying(FaultyServer(token_s=0.1)) as url:
        refused = here("bench", "--url", url, *POINT, "--budget", "2s", "--json")
        assert refused.code == 1 and refused.json is not None
        assert "a budget of 2.0 s is too short to measure anything here" in refused.json["message"]
        again = refused.json["next"].split()
        assert again[:3] == ["firesteel", "bench", "--resume"] and again[-2] == "--budget"
        done = here(
            "bench", "--url", url, "--resume", again[3], "--budget", "1m", "--precision", "90%", "--json"
        )
    assert done.code == 0 and done.json is not None and done.json["figures"][0]["samples"] > 0


@pytest.mark.parametrize("lie", ["500", "no usage", "garbage"])
def test_a_server_that_gives_nothing_is_exit_1(here: Firesteel, lie: str) -> None:
    with lying(FaultyServer(lie)) as url:
        ran = here("bench", "--url", url, *QUICK)
    assert ran.code == 1
    text = " ".join(ran.out.split())
    assert "nothing but wrong answers" in text and "2 failed" in text, ran.out


def test_an_interrupted_run_can_be_resumed(here: Firesteel, tmp_path: Path) -> None:
    with lying(FaultyServer(token_s=0)) as url:
        first = here("bench", "--url", url, *QUICK, "--json").json
        with open_history(Home(tmp_path / "home")) as history:
            whole = history.run(first["id"])
            history.delete(first["id"])
        assert first["is_whole"]
        with open_history(Home(tmp_path / "home")) as history:
            history.begin(replace(whole.run, figures=(), is_whole=False))
            history.add(first["id"], *whole.samples[:2])
        again = here("bench", "--url", url, "--resume", first["id"], "--json")
        assert again.code == 0, again.err
        assert again.json["id"] == first["id"] and again.json["is_whole"]
        with open_history(Home(tmp_path / "home")) as history:
            stored = history.run(first["id"])
        assert stored.samples[:2] == whole.samples[:2] and len(stored.samples) > 2
        done = here("bench", "--url", url, "--resume", first["id"])
        assert done.code == 2 and "is complete and cannot be continued" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--users", "0"), ("--users", "1,x"), ("--users", "9" * 400), ("--users", ",".join(["1"] * 1000)),
        ("--depth", "8q"), ("--depth", "99m"), ("--budget", "soon"), ("--budget", "0s"), ("--budget", "1e9h"),
        ("--precision", "200%"), ("--precision", "nan"), ("--text", "poetry"), ("--shape", "nonsense"),
        ("--rate", "0"), ("--rate", "-1"), ("--target", "speed=3"), ("--target", "ttft=soon"),
        ("--seed", "-1"),
        ("--key-env", "NO_SUCH_VARIABLE"), ("--html", "/no/such/folder/x.html"), ("--resume", "../../x"),
        ("--temperature", "9"), ("--thinking", "maybe"), ("--resume", "x", "--shape", "single"),
    ],
)  # fmt: skip
def test_invalid_arguments(here: Firesteel, arguments: tuple[str, ...]) -> None:
    with lying(FaultyServer(token_s=0)) as url:
        ran = here("bench", "--url", url, *arguments)
    assert ran.code == 2 and ran.err.count("\n") <= 4 and "next: " in ran.err, ran.err
    assert len(ran.err) < 900


def test_options_that_exclude_each_other(here: Firesteel) -> None:
    assert here("bench", "x", "--url", "http://127.0.0.1:9").code == 2
    assert here("bench", "--model", "x").code == 2
    assert here("bench", "--url", "ftp://x").code == 2
    assert here("bench", "--url", "http://user:pw@127.0.0.1:9").code == 2


def test_nothing_to_measure(here: Firesteel, free_port: int) -> None:
    nothing = here("bench")
    assert nothing.code == 5 and "nothing is running" in nothing.err
    silent = here("bench", "--url", f"http://127.0.0.1:{free_port}")
    assert silent.code == 5 and "does not answer" in silent.err


def test_the_shapes_are_listed(here: Firesteel) -> None:
    ran = here("bench", "--shape", "list")
    names = {"single", "agent", "rag", "burst", "open"}
    assert ran.code == 0 and all(name in ran.out for name in names)
    listed = here("bench", "--shape", "list", "--json").json
    jsonschema.validate(listed, schemas()["firesteel.bench-shapes/1"])
    assert names <= {shape["name"] for shape in listed["shapes"]}


def test_points_that_do_not_fit_the_context(here: Firesteel) -> None:
    with lying(FaultyServer(token_s=0)) as url:
        ran = here("bench", "--url", url, "--shape", "single", "--depth", "64k")
        assert ran.code == 2 and "8,192 are served" in ran.err
        some = here(
            "bench", "--url", url, "--shape", "single", "--depth", "64,64k", "--answer", "8",
            "--budget", "1m", "--precision", "90%",
        )  # fmt: skip
    assert some.code == 0 and "left out: points that need" in some.out


def _interrupt(home: Path, how: signal.Signals, *more: str) -> tuple[int, bytes]:
    """Interrupts a run long before its budget of ten minutes."""
    liar = FaultyServer(token_s=0.01)
    with lying(liar) as url:
        arguments = [sys.executable, "-m", "firesteel", "bench", "--url", url, *POINT, "--budget", "10m"]
        env = {**os.environ, "FIRESTEEL_HOME": str(home), "FIRESTEEL_COMMAND": "firesteel"}
        arguments += ["--precision", "0.01%", *more]
        with subprocess.Popen(arguments, env=env, stderr=subprocess.PIPE) as ran:
            until(lambda: liar.streams >= 5)
            ran.send_signal(how)
            _, message = ran.communicate(timeout=300)
    return ran.returncode, message


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_prints_how_to_resume(tmp_path: Path, how: signal.Signals) -> None:
    code, message = _interrupt(tmp_path, how)
    assert code == 130
    assert b"what was measured so far is kept; to continue: firesteel bench --resume 2" in message
    with open_history(Home(tmp_path)) as history:
        (line,) = history.runs()
    assert line.samples >= 2 and not line.is_whole


def test_a_killed_run_keeps_its_samples(here: Firesteel, tmp_path: Path) -> None:
    _interrupt(tmp_path / "home", signal.SIGKILL)
    shown = here("bench", "show", "last", "--json").json
    assert shown["figures"][0]["samples"] > 0 and shown["figures"][0]["ttft_ms"]["p50"] > 0
    assert any("the run was interrupted" in note for note in shown["notes"]) and not shown["is_whole"]
    refused = here("bench", "compare", "last", "--plan")
    assert refused.code == 2 and "has no plan" in refused.err


def test_a_resumed_run_has_its_own_budget(
    here: Firesteel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupt(tmp_path / "home", signal.SIGKILL)
    orders: list[RunOrder] = []

    def note(order: RunOrder, *_: object) -> None:
        orders.append(order)
        raise UsageError("only looked at", next="nothing")

    monkeypatch.setattr("firesteel.bench.load.measure.measure_recorded", note)
    with lying(FaultyServer(token_s=0)) as url:
        here("bench", "--url", url, "--resume", "last")
        here("bench", "--url", url, "--resume", "last", "--budget", "30s", "--precision", "5%")
    own, given = (order.limits for order in orders)
    assert 600 <= own.budget_s < 630 and own.precision == pytest.approx(0.0001)
    assert 30 <= given.budget_s < 60 and given.precision == pytest.approx(0.05)


def test_a_run_interrupted_before_its_first_answer_can_be_resumed(here: Firesteel, tmp_path: Path) -> None:
    with lying(FaultyServer(token_s=0)) as url:
        first = here("bench", "--url", url, *QUICK, "--json").json
        with open_history(Home(tmp_path / "home")) as history:
            whole = history.run(first["id"])
            history.delete(first["id"])
        with open_history(Home(tmp_path / "home")) as history:
            history.begin(replace(whole.run, figures=(), is_whole=False))
        again = here("bench", "--url", url, "--resume", first["id"], "--json")
    assert again.code == 0 and again.json["is_whole"], again.err
