"""The real engine from up to down, with a real client, and the ways in which a start can fail."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from tests.conftest import Ran, run_firesteel

from firesteel.edge.files.home import Home
from firesteel.edge.host import process
from firesteel.run.service import all_services

pytestmark = pytest.mark.real


def up(home: Home, port: int, *arguments: str) -> Ran:
    return run_firesteel(home.root, "up", "--port", str(port), *arguments)


def test_up_chat_verify_down(engine_home: Home, free_port: int) -> None:
    ran = up(engine_home, free_port, "--json")
    assert ran.code == 0, ran.err
    report = ran.json
    assert report["verified"] and not report["already_running"]
    names = [check["name"] for check in report["checks"] if check["level"] == "gate"]
    assert names[:4] == ["speaks", "no garbage", "same twice", "stream equals plain"]

    client = openai.OpenAI(base_url=report["url"], api_key="none", timeout=60)
    chat = client.chat.completions.create(
        model=report["model"], messages=[{"role": "user", "content": "What is 2+2?"}], temperature=0
    )
    assert "4" in (chat.choices[0].message.content or "")
    client.close()

    again = up(engine_home, free_port, "--json")
    assert again.code == 0 and again.json["already_running"]
    other = up(engine_home, free_port, "--context", "1024")
    assert other.code == 1 and "with other settings" in other.err and "firesteel down smollm2" in other.err
    ran = run_firesteel(engine_home.root, "verify", "--json")
    assert ran.code == 0, ran.out + ran.err
    passed = {check["name"] for check in ran.json["checks"] if check["passed"]}
    assert {"speaks", "2+2", "no garbage", "same twice", "stop", "max_tokens", "usage", "facts"} <= passed
    foreign = run_firesteel(engine_home.root, "verify", "--url", report["url"], "--json")
    assert foreign.code == 0 and foreign.json["name"] == "smollm2"
    listed = run_firesteel(engine_home.root, "ps", "--json").json["services"]
    assert [(service["name"], service["phase"]) for service in listed] == [("smollm2", "ready")]

    engine = all_services(engine_home)[0].state
    assert engine is not None and engine.engine is not None
    down = run_firesteel(engine_home.root, "down", "--json")
    # Other tests start engines meanwhile: the host may not have more memory than before.
    assert down.code == 0 and re.search("MiB are (free again|not free yet)", down.json["done"][0])
    assert not process.is_alive(engine.engine) and not process.is_alive(engine.supervisor)
    assert process.port_is_free(free_port)
    assert "listening on" in run_firesteel(engine_home.root, "logs", "smollm2", "-n", "20000").out


def test_the_engine_takes_the_planned_memory(engine_home: Home, free_port: int) -> None:
    # Weights of its own: of pages that engines of other tests map, too, each has only a share.
    weights = engine_home.weights.resolve()
    engine_home.weights.unlink()
    shutil.copytree(weights, engine_home.weights)
    report = up(engine_home, free_port, "--json", "--context", "1000", "--users", "3").json
    rows = {row["what"]: row for row in report["compared"]}
    assert rows["weights"]["measured"] == pytest.approx(rows["weights"]["planned"]["expected"], rel=1e-4)
    assert rows["KV cache"]["measured"] == pytest.approx(rows["KV cache"]["planned"]["expected"], rel=1e-4)
    assert rows["compute buffers"]["within"]
    assert rows["memory in all"]["within"]
    assert rows["decode"]["measured"] > 0


def test_a_port_in_use(quick_home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = up(quick_home, port)
    assert ran.code == 5
    assert f"port {port} is in use by" in ran.err and f"pid {os.getpid()}" in ran.err
    assert "next: firesteel up smollm2 --port" in ran.err
    assert all_services(quick_home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_up_leaves_nothing(quick_home: Home, free_port: int, number: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "up", "--port", str(free_port)],
        env={**os.environ, "FIRESTEEL_HOME": str(quick_home.root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("launch"):
            break
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert all_services(quick_home) == []
    assert process.port_is_free(free_port)


def test_up_continues_after_a_killed_up(quick_home: Home, free_port: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "up", "--port", str(free_port)],
        env={**os.environ, "FIRESTEEL_HOME": str(quick_home.root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("launch") and "loading" in line:
            break
    child.kill()
    child.communicate(timeout=60)
    left = all_services(quick_home)
    assert [service.phase for service in left] == ["starting"]
    again = up(quick_home, free_port)
    assert again.code == 0 and "continuing from there" in again.err
    assert all_services(quick_home)[0].state == left[0].state
    assert run_firesteel(quick_home.root, "down").code == 0
    assert all_services(quick_home) == []


def test_a_damaged_model_file_is_reported_with_its_reason(
    engine_home: Home, free_port: int, tmp_path: Path
) -> None:
    whole = next(engine_home.weights.rglob("*.gguf")).read_bytes()
    model = tmp_path / "zeros.gguf"
    header = 2_000_000
    model.write_bytes(whole[:header] + b"\xff" * (len(whole) - header))
    ran = run_firesteel(engine_home.root, "up", str(model), "--port", str(free_port))
    assert ran.code == 1
    assert "zeros came up, but its answers are wrong" in ran.err or "zeros did not start" in ran.err
    assert "next: firesteel logs zeros" in ran.err
    assert all_services(engine_home) == []


def test_two_ups_at_once(quick_home: Home, free_port: int) -> None:
    arguments = [sys.executable, "-m", "firesteel", "up", "--port", str(free_port), "--json"]
    env = {**os.environ, "FIRESTEEL_HOME": str(quick_home.root)}
    quiet = subprocess.DEVNULL
    with (
        subprocess.Popen(arguments, env=env, stdout=quiet, stderr=quiet) as one,
        subprocess.Popen(arguments, env=env, stdout=quiet, stderr=quiet) as two,
    ):
        codes = {one.wait(timeout=300), two.wait(timeout=300)}
    assert 0 in codes and codes <= {0, 1}
    assert len(all_services(quick_home)) == 1
    assert all_services(quick_home)[0].phase == "ready"
