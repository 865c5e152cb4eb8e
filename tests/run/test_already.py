"""`up` of what runs already: it is the answer, although the memory that it holds is no longer free."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import firesteel
from firesteel.edge.files.home import Home
from firesteel.edge.host import process
from firesteel.errors import DoesNotFit
from firesteel.launch import Ask
from firesteel.proposals import Proposal
from firesteel.run import Report, RunOptions, ServiceReady, all_services, bring_up
from firesteel.run.service import folder_of, write_spec
from firesteel.run.start.options import make_spec
from firesteel.run.start.start import start_supervisor

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def too_large() -> Proposal:
    """A model for which nothing is left: it, or another, holds the memory."""
    host = replace(firesteel.host("gb10"), memory_available_bytes=2**20)
    best = firesteel.propose(Ask("smollm2"), host)[0]
    assert not best.plan.fits
    return best


def serve(proposal: Proposal, home: Home) -> process.Pid:
    """A supervisor of a process that stands in for the engine, with the report of a good start."""
    name = proposal.name
    write_spec(folder_of(home, name), replace(make_spec(proposal, home, RunOptions()), start=SLEEPS))
    start_supervisor(folder_of(home, name))
    report = Report(name, "", name, "llamacpp", None, (), (), 1.0, 1.0, "")
    (folder_of(home, name) / "report.json").write_text(json.dumps(asdict(report)))
    for _ in range(200):
        found = all_services(home)
        if found and found[0].phase == "ready" and found[0].state:
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
