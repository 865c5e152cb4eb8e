"""The stages of `up`: what a failure stops, and how long the work lock is held."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import firesteel
from firesteel.edge.home import Home, is_locked, write_state
from firesteel.edge.host import process
from firesteel.errors import DoesNotFit, FiresteelError, HostNotReady
from firesteel.launch import Ask
from firesteel.run.events import Event, PhaseDone, PhaseProgress, ServiceReady
from firesteel.run.preflight import memory_holders
from firesteel.run.service import Proof, load, read_proof, record_proof
from firesteel.run.spec import RunOptions, make_spec
from firesteel.run.up import Startup, bring_up, run_stages, start, stopped_on_failure
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


@pytest.mark.real
async def test_an_engine_that_dies_at_the_very_end_is_no_success(quick_home: Home, free_port: int) -> None:
    """Killed after the last check, before the supervisor has looked again."""
    proposal = firesteel.propose(Ask("smollm2", port=free_port), firesteel.host("local"))[0]
    seen = []
    with pytest.raises(FiresteelError, match=r"smollm2 (was verified, and then|did not start: .*killed)"):
        async for event in bring_up(proposal, quick_home):
            seen.append(event)
            if isinstance(event, PhaseDone) and event.phase == "verify":
                service = load(quick_home, "smollm2")
                assert service and service.state and service.state.engine
                process.send(service.state.engine, signal.SIGKILL)
    assert not [event for event in seen if isinstance(event, ServiceReady)]
    assert load(quick_home, "smollm2") is None


HOLDS = "import sys; held = bytearray(b'x') * (300 * 2**20); print(len(held), flush=True); sys.stdin.read()"


async def test_what_holds_the_memory_is_named_with_what_stops_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as child:
        try:
            assert child.stdout and child.stdout.readline()
            holders = await memory_holders(Home(tmp_path))
            mine = [holder for holder in holders if holder.stop.endswith(f"kill {child.pid}")]
            assert len(mine) == 1 and mine[0].bytes >= 300 * 2**20 and "python" in mine[0].name
            host = firesteel.host("gb10")
            small = replace(host, memory_available_bytes=host.keep_free_bytes + 2**20)
            proposal = firesteel.propose(Ask("smollm2"), small)[0]
            assert not proposal.plan.fits
            with pytest.raises(DoesNotFit) as caught:
                async for _ in bring_up(proposal, Home(tmp_path)):
                    pass
        finally:
            child.kill()
    assert holders[0].name in caught.value.what and " holds " in caught.value.what
    assert holders[0].stop in (caught.value.next or "") and "then repeat the command" in caught.value.next
