"""Commands on a simulated Spark: up, ps, logs, verify, down, and a fault."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Firesteel, Ran

from firesteel.edge.host.process import port_is_free
from firesteel.edge.sim.spark import held_bytes

MODEL = "qwen3.6-35b-a3b-nvfp4"
SMALL = ("--context", "8192", "--users", "2")
QUICK = {"FIRESTEEL_SIM_SPEED": "100"}


@pytest.fixture
def sim(firesteel: Firesteel) -> Iterator[Firesteel]:
    """`firesteel --sim ...` in a home of its own; what runs there is stopped after."""
    yield lambda *arguments, **more: firesteel("--sim", *arguments, env=QUICK, **more)
    firesteel("--sim", "down", "--all")


def test_up_ps_logs_down(sim: Firesteel, free_port: int, tmp_path: Path) -> None:
    up = sim("up", MODEL, *SMALL, "--port", str(free_port), "--json")
    assert up.code == 0, up.err
    assert up.err.startswith("simulated Spark: nothing it shows was measured")
    assert up.json["name"] == MODEL
    home = tmp_path / "home"
    assert not (home / "services").exists() and (home / "sim/home/services" / MODEL).is_dir()
    with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/v1/models") as answer:
        assert answer.headers["X-Firesteel-Simulated"] and json.loads(answer.read())["data"][0]["simulated"]
    (service,) = sim("ps", "--json").json["services"]
    assert (service["name"], service["phase"]) == (MODEL, "ready")
    assert "Available KV cache memory" in sim("logs", MODEL).out
    assert sum(held_bytes(home / "sim").values()) > 25 * 2**30
    again = sim("up", MODEL, *SMALL, "--port", str(free_port), "--json")
    assert again.code == 0 and again.json["already_running"]
    beside = sim("up", "gpt-oss-120b-vllm")
    assert beside.code == 4 and f"{MODEL} runs here" in beside.err
    assert f"down {MODEL}, then repeat the command" in beside.err
    down = sim("down", MODEL)
    assert down.code == 0 and "are free again" in down.err, down.err
    assert not held_bytes(home / "sim") and port_is_free(free_port)


def test_a_crash_while_it_starts(sim: Firesteel, free_port: int, tmp_path: Path) -> None:
    up: Ran = sim("crash", "up", MODEL, *SMALL, "--port", str(free_port))
    assert up.code == 1 and "CUDA out of memory" in up.err, up.err
    assert not held_bytes(tmp_path / "home/sim") and port_is_free(free_port)


def test_the_host_is_called_simulated(firesteel: Firesteel) -> None:
    planned = firesteel("--sim", "plan", "gpt-oss-20b", "--json")
    assert planned.code == 0, planned.err
    assert "simulated NVIDIA DGX Spark (GB10)" in planned.out
    unknown = firesteel("--sim", "nonsense", "ps")
    assert unknown.code == 2 and "there is no scenario `nonsense`" in unknown.err
