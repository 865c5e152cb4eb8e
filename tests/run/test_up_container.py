"""The same path as on a Spark: a container recipe, up to the report, on a pretend docker."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import firesteel
from firesteel.edge import embedded
from firesteel.edge.home import Home
from firesteel.errors import HostNotReady
from firesteel.facts.host import Gpu
from firesteel.launch import Ask
from firesteel.rules import Proposal
from firesteel.run import Ready, all_services, bring_up, stop

pytestmark = pytest.mark.real


@pytest.fixture
def calls(engine_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH whose first `docker` is the pretend one."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n" + Path(__file__).with_name("pretend_docker.py").read_text())
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    python = next(engine_home.engines.glob("*/bin/python"))
    weights = next(engine_home.weights.rglob("*.gguf"))
    engine = [str(python), "-I", str(embedded.SERVER), "--model", str(weights), "--ctx-size", "2048"]
    kept = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PRETEND_DOCKER_CALLS", str(kept))
    monkeypatch.setenv("PRETEND_DOCKER_ENGINE", json.dumps(engine))
    return kept


def on_a_spark(port: int) -> Proposal:
    spark = replace(firesteel.host("gb10"), gpus=(Gpu("NVIDIA GB10", "580.95.05", "12.1"),))
    # The guard looks at the real host, which is smaller than what is kept free on a Spark.
    spark = replace(spark, keep_free_bytes=0)
    return firesteel.propose(Ask("gpt-oss-120b-llamacpp", port=port), spark)[0]


async def test_a_container_recipe_goes_the_whole_way(engine_home: Home, calls: Path, free_port: int) -> None:
    events = [event async for event in bring_up(on_a_spark(free_port), engine_home)]
    ready = events[-1]
    assert isinstance(ready, Ready) and ready.report.is_verified
    told = [json.loads(line) for line in calls.read_text().splitlines()]
    assert [words[0] for words in told] == ["version", "image", "pull", "run"]
    run = told[-1]
    assert run[:4] == ["run", "--name", "firesteel-gpt-oss-120b-llamacpp", "--label"]
    assert "--rm" in run and "-d" not in run and "--gpus" in run
    assert not any(word.startswith("~") for word in run)
    service = all_services(engine_home)[0]
    assert service.phase == "ready"
    async for _ in stop(service):
        pass
    assert json.loads(calls.read_text().splitlines()[-1]) == ["stop", "firesteel-gpt-oss-120b-llamacpp"]
    assert all_services(engine_home) == []


async def test_without_docker(engine_home: Home, monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostNotReady, match="docker is not installed") as refused:
        async for _ in bring_up(on_a_spark(free_port), engine_home):
            pass
    assert refused.value.next == "sudo apt install docker.io"
