"""`up` of what runs already: it is the answer, although the memory that it holds is no longer free."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import run_firesteel

import firesteel
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.errors import DoesNotFit, FiresteelError
from firesteel.launch import Ask
from firesteel.planner.propose import Proposal
from firesteel.run.events import ServiceReady
from firesteel.run.report import Report
from firesteel.run.service import Proof, all_services, folder_of, read_proof, record_proof, write_spec
from firesteel.run.spec import RunOptions, make_spec
from firesteel.run.start import start_supervisor
from firesteel.run.up import bring_up
from firesteel.values import plain, replace

SERVES = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1")


@pytest.fixture
def too_large(free_port: int) -> Proposal:
    """A model for which nothing is left: it, or another, holds the memory."""
    host = replace(firesteel.host("gb10"), memory_available_bytes=2**20)
    best = firesteel.propose(Ask("smollm2", port=free_port), host)[0]
    assert not best.plan.fits
    return best


def serve(proposal: Proposal, home: Home) -> process.Pid:
    """A supervisor of a process that stands in for the engine, with the report of a good start."""
    name, port = proposal.name, proposal.plan.launch.port
    (home.root / "health").touch()  # what it answers with
    start = (*SERVES, "--directory", str(home.root), str(port))
    write_spec(folder_of(home, name), replace(make_spec(proposal, home, RunOptions()), start=start))
    start_supervisor(folder_of(home, name))
    report = Report(name, "", name, "llamacpp", None, (), (), 1.0, 1.0, "")
    (folder_of(home, name) / "report.json").write_text(json.dumps(plain(report)))
    for _ in range(200):
        found = all_services(home)
        is_up = found and found[0].phase == "ready" and not process.port_is_free(port)
        if is_up and found[0].state:
            return found[0].state.supervisor
        time.sleep(0.05)
    raise AssertionError("it is not ready")


async def test_a_running_service_is_reported(too_large: Proposal, tmp_path: Path) -> None:
    home = Home(tmp_path)
    supervisor = serve(too_large, home)
    try:
        last = [event async for event in bring_up(too_large, home)][-1]
    finally:
        process.send(supervisor, signal.SIGTERM)
    assert isinstance(last, ServiceReady) and last.already


async def test_a_running_service_that_does_not_answer_is_not_called_up(
    too_large: Proposal, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    supervisor = serve(too_large, home)
    (tmp_path / "health").unlink()
    try:
        with pytest.raises(FiresteelError, match="/health answers HTTP 404"):
            async for _ in bring_up(too_large, home):
                pass
    finally:
        process.send(supervisor, signal.SIGTERM)


async def test_a_service_that_fails_verify_is_proved_in_full_the_next_time(
    too_large: Proposal, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    supervisor = serve(too_large, home)
    record_proof(home, "smollm2", Proof("digest", "answer"))
    try:
        ran = await asyncio.to_thread(run_firesteel, tmp_path, "verify", "smollm2")
    finally:
        process.send(supervisor, signal.SIGTERM)
    assert ran.code != 0 and read_proof(home, "smollm2") is None, ran.err


async def test_other_settings_are_named(too_large: Proposal, tmp_path: Path, free_port: int) -> None:
    home = Home(tmp_path)
    supervisor = serve(too_large, home)
    other = firesteel.propose(Ask("smollm2", port=free_port, context=1024), firesteel.host("gb10"))[0]
    write_spec(folder_of(home, "smollm2"), make_spec(too_large, home, RunOptions()))
    try:
        with pytest.raises(FiresteelError, match=r"with other settings: .*--ctx-size 8192, not 2048"):
            async for _ in bring_up(other, home):
                pass
    finally:
        process.send(supervisor, signal.SIGTERM)


async def test_a_plan_that_does_not_fit_names_the_running_service(
    too_large: Proposal, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    supervisor = serve(too_large, home)
    launch = replace(too_large.plan.launch, name="another")
    another = replace(too_large, plan=replace(too_large.plan, launch=launch))
    try:
        with pytest.raises(DoesNotFit, match="smollm2 runs here") as refused:
            async for _ in bring_up(another, home):
                pass
    finally:
        process.send(supervisor, signal.SIGTERM)
    assert "down" not in refused.value.next, "it holds far too little"


@pytest.mark.real
def test_a_file_that_is_up_is_what_was_asked_for_without_a_number_of_users(
    quick_home: Home, free_port: int
) -> None:
    """For how many it is planned depends on the free memory, which it holds itself by now."""
    (weights,) = quick_home.weights.rglob("*.gguf")
    asked = ("up", str(weights), "--port", str(free_port))
    first = run_firesteel(quick_home.root, *asked, "--users", "2")
    assert first.code == 0 and "serves 2 requests at once" in first.err, first.err
    again = run_firesteel(quick_home.root, *asked)
    assert again.code == 0 and "is already up" in again.err, again.err
    other = run_firesteel(quick_home.root, *asked, "--users", "3")
    assert other.code == 1 and "with other settings" in other.err
