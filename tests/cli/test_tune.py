"""`firesteel tune` as a user types it: on the simulated Spark, killed and resumed; and on the real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from firesteel.edge.home import Home
from firesteel.edge.host.process import port_is_free
from firesteel.edge.sim.spark import TrueSpeed, held_bytes, read_spark, write_spark
from firesteel.library.documents.all import schemas
from firesteel.values import replace
from tests.cli.inside import inside
from tests.conftest import Firesteel, Ran, run_firesteel

MODEL = "gpt-oss-120b-llamacpp"
QUICK = {"FIRESTEEL_SIM_SPEED": "1000"}
TRUTHS = (
    TrueSpeed(decode_tokens_per_s=200.0, prefill_tokens_per_s=50_000.0),
    TrueSpeed(when={"cache-type-k": "q8_0"}, decode_times=4),
    TrueSpeed(when={"flash-attn": "off"}, decode_times=0.6),
)
"""The current setting makes 200 tok/s; a q8_0 cache is four times as fast: no busy machine hides that."""
SMALL = ("--context", "4096", "--users", "1")
SEARCH = (
    *SMALL,
    "--only",
    "cache-type",
    "--text",
    "code",
    "--answer",
    "32",
    "--depth",
    "64",
    "--max-runs",
    "4",
)


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Firesteel]:
    home = tmp_path / "home"

    def run(*arguments: str, **more: Any) -> Ran:
        return run_firesteel(home, "--sim", *arguments, env=QUICK, **more)

    assert run("idle", "ps").code == 0
    write_spark(home / "sim", replace(read_spark(home / "sim"), truths=TRUTHS))
    yield run
    run("down", "--all")


def journal(home: Path) -> dict[str, Any]:
    (path,) = (home / "sim/home/tune").glob("*/journal.json")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_killed_resumed_and_the_best_setting_runs(sim: Firesteel, free_port: int, tmp_path: Path) -> None:
    home = tmp_path / "home"
    up = sim("up", MODEL, *SMALL, "--port", str(free_port))
    assert up.code == 0, up.err
    arguments = ("tune", MODEL, *SEARCH)
    killed = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "--sim", *arguments],
        env={**os.environ, "FIRESTEEL_HOME": str(home), **QUICK},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 6000
    while not _has_run(home):
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=120)
    first = journal(home)["trials"][0]
    again = sim(*arguments)
    assert again.code == 2 and "was interrupted after" in again.err and "--resume" in again.err
    other = sim("tune", MODEL, "--resume", "--only", "parallel")
    assert other.code == 2 and "--only is for a new one" in other.err
    done = sim(*arguments, "--resume", "--json")
    assert done.code == 0, done.err
    result = done.json
    assert journal(home)["trials"][0] == first  # not measured again
    assert result["is_better"] and result["changes"] == {"cache-type": "q8_0"}, result["words"]
    assert result["ratio"] > 1  # how much is in tests/bench/test_tune.py: the engine runs in real time
    assert result["recipe"] == f"{MODEL}-tuned" and result["running"] == MODEL
    (service,) = sim("ps", "--json").json["services"]
    assert (service["name"], service["phase"]) == (MODEL, "ready")
    spec = json.loads((home / "sim/home/services" / MODEL / "spec.json").read_text())
    assert "q8_0" in spec["start"] and spec["ask"]["model"] == f"{MODEL}-tuned"
    planned = sim("plan", f"{MODEL}-tuned", *SMALL, "--host", "gb10", "--json")
    assert planned.code == 0 and "q8_0" in planned.out
    listed = {row["id"] for row in sim("bench", "list", "--json").json["runs"]}
    assert {trial["run"] for trial in result["trials"] if trial["run"]} <= listed


def _has_run(home: Path) -> bool:
    result = list((home / "sim/home/tune").glob("*/journal.json"))
    return bool(result) and bool(json.loads(result[0].read_text())["trials"])


def test_an_interrupt_restores_what_ran_before(sim: Firesteel, tmp_path: Path, free_port: int) -> None:
    """Nothing ran before, so nothing runs after Ctrl-C."""
    home = tmp_path / "home"
    arguments = ["--sim", "tune", MODEL, *SEARCH, "--port", str(free_port)]
    with subprocess.Popen(
        [sys.executable, "-m", "firesteel", *arguments],
        env={**os.environ, "FIRESTEEL_HOME": str(home), **QUICK},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        deadline = time.monotonic() + 600
        while port_is_free(free_port):
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=300)
    assert running.returncode == 130 and "--resume" in err, err
    assert not held_bytes(home / "sim") and port_is_free(free_port)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("smollm2", "--goal", "speed"), "speed"),
        (("smollm2", "--budget", "soon"), "is not a duration"),
        (("smollm2", "--text", "poems"), "no kind of text"),
        (("smollm2", "--max-runs", "1"), "max-runs"),
        (("nonsense-9b",), "nonsense-9b"),
        (("smollm2", "--resume"), "no interrupted search for smollm2"),
    ],
)
def test_invalid_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    ran = inside(tmp_path, monkeypatch, capsys)("tune", *arguments)
    assert ran.code == 2 and says in ran.err, ran.err


def test_a_dry_run_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    firesteel = inside(tmp_path, monkeypatch, capsys)
    ran = firesteel("tune", "smollm2", "--dry-run")
    assert ran.code == 0 and "flash-attn" in ran.out and "threads" in ran.out
    one = firesteel("tune", "smollm2", "--dry-run", "--only", "threads")
    assert one.code == 0 and "flash-attn" not in one.out and "threads" in one.out
    space = firesteel("tune", "smollm2", "--dry-run", "--json").json
    jsonschema.validate(space, schemas()["firesteel.tune-dry-run/1"])
    assert {"flash-attn", "threads"} <= {knob["name"] for knob in space["knobs"]}
    assert not (tmp_path / "tune").exists() and not (tmp_path / "services").exists()


@pytest.mark.real
def test_each_setting_is_started_verified_and_measured(quick_home: Home, free_port: int) -> None:
    """Two settings, each started, verified and measured; which is faster depends on the machine."""
    ran = run_firesteel(
        quick_home.root, "tune", "smollm2", "--context", "1024", "--users", "1", "--port", str(free_port),
        "--only", "flash-attn", "--text", "prose", "--answer", "24", "--depth", "64", "--max-runs", "3",
        "--budget", "60s", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    result = ran.json
    assert result["trials"][0]["changes"] == {} and result["trials"][0]["tokens_per_s"] > 0
    tried = [trial for trial in result["trials"] if trial["role"] == "search"]
    assert all(trial["failed"] is None and trial["rounds"] >= 1 for trial in tried), result["trials"]
    assert result["is_better"] == (result["recipe"] is not None)
    assert run_firesteel(quick_home.root, "ps", "--json").json["services"] == []
    assert port_is_free(free_port)
