"""Two simulated Sparks: vLLM in containers over both, RDMA proved from the log, a node that dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Ran, run_firesteel

from firesteel.facts.host.hardware import Meminfo
from firesteel.units import GIB

MODEL = "qwen3-235b-gptq-int4-two-sparks"
QUICK = "gpt-oss-20b"
"""Four times as many tokens a second, in real time: most of a start is its verification."""
FAST = {"FIRESTEEL_SIM_SPEED": "400"}


def sim(home: Path, *words: str) -> Ran:
    return run_firesteel(home, "--sim", *words, env=FAST)


@pytest.fixture
def home(tmp_path: Path) -> Any:
    assert run_firesteel(tmp_path, "--sim", "two-sparks", "cluster", "list", env=FAST).code == 0
    yield tmp_path
    sim(tmp_path, "down", "--all")


def change_node(home: Path, **values: object) -> None:
    file = home / "sim/nodes/spark2/spark.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_stage_up_and_down(home: Path, free_port: int) -> None:
    found = sim(home, "cluster", "check", "--json")
    assert found.code == 0, found.err
    assert found.json["topology"] == "direct" and {row["level"] for row in found.json["findings"]} == {"good"}
    assert len(found.json["doctor"]["hosts"]) == 2 and found.json["doctor"]["hosts"]["spark2"]["is_spark"]
    assert not found.json["doctor"]["differences"]
    refused = sim(home, "up", MODEL)
    assert refused.code == 5 and "--cluster" in refused.err, "on one host, it says what to type"
    up = ("up", QUICK, "--cluster", "--port", str(free_port))
    unstaged = sim(home, *up)
    assert unstaged.code == 5 and f"cluster stage {QUICK}" in unstaged.err
    assert sim(home, "cluster", "stage", QUICK).code == 0
    dry = sim(home, *up, "--dry-run")
    assert "--node-rank 1" in dry.out and "--headless" in dry.out and "VLLM_HOST_IP=192.168.100.11" in dry.out
    ran = sim(home, *up)
    assert ran.code == 0, ran.err
    assert "NCCL: RDMA by rocep1s0f1, roceP2p1s0f1" in ran.err and "rank 1" in ran.out
    rows = sim(home, "ps", "--json").json["services"][0]
    assert rows["phase"] == "ready" and [row["phase"] for row in rows["cluster"]["nodes"]] == ["running"] * 2
    for node in rows["cluster"]["nodes"]:  # of the simulated Sparks, not of this machine
        assert node["resident_bytes"] > 15 * GIB and node["available_bytes"] > 80 * GIB
    assert "rank 1 in world size 2" in sim(home, "logs", QUICK, "--node", "spark2", "-n", "500").out
    assert sim(home, "down").code == 0
    memory = Meminfo.parse((home / "sim/nodes/spark2/proc/meminfo").read_text())
    assert memory.available_bytes > 110 * GIB, "what its rank held is free again"
    assert not list((home / "sim/nodes/spark2/containers").glob("*.json")), "no container is left on the node"


@pytest.mark.parametrize(
    "stage",
    [
        "load",
        *(pytest.param(stage, marks=pytest.mark.slow) for stage in ("start", "compile", "kv", "graphs")),
    ],
)
def test_a_node_that_dies_while_it_starts(home: Path, free_port: int, stage: str) -> None:
    assert sim(home, "cluster", "stage", MODEL).code == 0
    change_node(home, faults=[{"kind": "crash", "at": stage, "after": 0, "seconds": 0, "bytes": 0, "code": 3,
                               "times": 1, "lines": ["RuntimeError: the node dies"]}])  # fmt: skip
    ran = sim(home, "up", MODEL, "--cluster", "--port", str(free_port))
    assert ran.code == 1 and "spark2: its rank exited with code 3" in ran.err, ran.err
    assert "RuntimeError: the node dies" in sim(home, "logs", MODEL, "--node", "spark2").out
    for folder in ("sim/containers", "sim/nodes/spark2/containers"):
        assert not list((home / folder).glob("*.json")), "no container is left"


@pytest.mark.slow
def test_tcp_is_refused_unless_it_is_allowed(home: Path, free_port: int) -> None:
    assert sim(home, "cluster", "stage", MODEL).code == 0
    for folder in ("sim", "sim/nodes/spark2"):
        file = home / folder / "facts.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "rdma": []}))
    up = ("up", MODEL, "--cluster", "--port", str(free_port))
    refused = sim(home, *up)
    assert refused.code == 3 and "NCCL uses TCP sockets in place of RDMA" in refused.err, refused.err
    assert sim(home, *up, "--allow-tcp").code == 0
