"""The stages of `up`: what a failure stops, and how long the work lock is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import firesteel
from firesteel.edge.home import Home, is_locked, write_state
from firesteel.errors import HostNotReady
from firesteel.launch import Ask
from firesteel.run.events import Event, PhaseProgress
from firesteel.run.service import Proof, load, read_proof, record_proof
from firesteel.run.spec import RunOptions, make_spec
from firesteel.run.up import Startup, run_stages, start, stopped_on_failure
from firesteel.values import replace


@pytest.fixture
def startup(tmp_path: Path, free_port: int) -> Startup:
    proposal = firesteel.propose(Ask("smollm2", port=free_port), firesteel.host("gb10"))[0]
    return Startup(proposal, Home(tmp_path), RunOptions())


async def test_a_failure_before_the_start_stops_nothing(startup: Startup) -> None:
    """The secrets cannot be written. What an earlier stage wrote looks like a service that is starting."""
    home, name = startup.home, startup.proposal.name
    record_proof(home, name, Proof("digest", "answer"))
    (home.root / "secrets").touch()

    async def write_ranks(startup: Startup) -> AsyncGenerator[Event]:
        write_state(startup.folder / "ranks.json", ())
        yield PhaseProgress("launch", "comparing the files on all hosts")
        assert load(home, name)

    seen = []
    with pytest.raises(HostNotReady, match="secrets"):
        async for event in run_stages(startup, write_ranks, stopped_on_failure(start)):
            seen.append(event)
    assert "stop" not in [event.phase for event in seen if isinstance(event, PhaseProgress)]
    assert read_proof(home, name) == Proof("digest", "answer")


async def test_a_closed_stream_keeps_the_lock_until_its_stage_has_ended(startup: Startup) -> None:
    was_locked = []

    async def cleans_up(startup: Startup) -> AsyncGenerator[Event]:
        try:
            yield PhaseProgress("launch", "loading")
        finally:
            await asyncio.sleep(0.01)
            was_locked.append(is_locked(startup.folder / "work.lock"))

    events = run_stages(startup, stopped_on_failure(cleans_up))
    async for event in events:
        if event == PhaseProgress("launch", "loading"):
            break
    await events.aclose()
    assert was_locked == [True]
    assert not is_locked(startup.folder / "work.lock")


def test_a_container_is_stopped_by_its_supervisor_unless_a_runner_does(tmp_path: Path) -> None:
    """Also one of a launch over several Sparks, when it is started on a single host."""
    proposal = firesteel.propose(Ask("gpt-oss-120b-vllm"), firesteel.host("gb10"))[0]
    launch = replace(proposal.plan.launch, sparks=2)
    proposal = replace(proposal, plan=replace(proposal.plan, launch=launch))
    spec = make_spec(proposal, Home(tmp_path), RunOptions())
    assert spec.stop[:2] == ("docker", "stop") and spec.attach[:2] == ("docker", "attach")
    over_hosts = make_spec(proposal, Home(tmp_path), RunOptions(), has_runner=True)
    assert not over_hosts.stop and not over_hosts.attach
    assert over_hosts.stop_grace_s > spec.stop_grace_s
