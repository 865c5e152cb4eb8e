"""A model that is swapped in again is proved briefly, and in full after anything that could matter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.home import Home
from firesteel.facts.host.hardware import Gpu
from firesteel.gateway.loader.process import AvailableSample, ExpectedRelease, is_released
from firesteel.launch import Ask
from firesteel.planner.propose import Proposal
from firesteel.run.service import Proof, ServiceSpec, forget_proof, read_proof, record_proof
from firesteel.run.spec import RunOptions, make_spec
from firesteel.run.verify.after_start import proof_digest
from firesteel.values import replace
from firesteel.workspace import Workspace
from tests.conftest import run_firesteel

LOADER = [sys.executable, "-P", "-m", "firesteel.gateway.loader"]
FULL = {"check", "launch", "plan", "warm", "verify"}
BRIEF = FULL - {"warm"}


def ran(home: Home, *words: str) -> list[dict[str, Any]]:
    child = subprocess.Popen(
        [*LOADER, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FIRESTEEL_HOME": str(home.root)},
    )
    with child:
        assert child.stdout
        return [json.loads(line) for line in child.stdout]


def phases_of_a_swap(home: Home, port: int, name: str = "one") -> set[str]:
    """Load it and unload it again; which phases the load went through."""
    job = {"name": name, "recipe": "smollm2", "context": 2048, "port": port}
    lines = ran(home, "load", json.dumps(job))
    assert "up" in lines[-1], lines[-1]
    parts = [line.get("doing", line.get("done")) for line in lines]
    phases = {part["phase"] for part in parts if part}
    gone = ran(home, "unload", name)[-1]["gone"]
    assert gone["is_process"] and gone["held_bytes"] > 0
    return phases


@pytest.mark.real
def test_a_swap_is_proved_briefly_until_something_is_different(quick_home: Home, free_port: int) -> None:
    assert phases_of_a_swap(quick_home, free_port) == FULL
    proof = read_proof(quick_home, "one")
    assert proof and proof.answer
    assert phases_of_a_swap(quick_home, free_port) == BRIEF
    assert read_proof(quick_home, "one") == proof
    record_proof(quick_home, "one", replace(proof, answer="something else"))
    assert phases_of_a_swap(quick_home, free_port) == FULL
    assert read_proof(quick_home, "one") == proof


@pytest.mark.real
def test_up_proves_in_full(quick_home: Home, free_port: int) -> None:
    """Somebody who types `up` wants to know; and what it proves, a gateway need not prove again."""
    arguments = ("smollm2", "--context", "2048", "--port", str(free_port))
    for _ in range(2):
        done = run_firesteel(quick_home.root, "up", *arguments)
        assert done.code == 0 and "2+2" in done.out + done.err
        assert run_firesteel(quick_home.root, "down", "smollm2").code == 0
        assert phases_of_a_swap(quick_home, free_port, "smollm2") == BRIEF


Change = Callable[[Proposal, ServiceSpec, Path], tuple[Proposal, ServiceSpec]]


def same(proposal: Proposal, spec: ServiceSpec, weights: Path) -> tuple[Proposal, ServiceSpec]:
    return proposal, spec


def other_flags(proposal: Proposal, spec: ServiceSpec, weights: Path) -> tuple[Proposal, ServiceSpec]:
    return proposal, replace(spec, start=(*spec.start, "--parallel", "2"))


def other_environment(proposal: Proposal, spec: ServiceSpec, weights: Path) -> tuple[Proposal, ServiceSpec]:
    return proposal, replace(spec, env={"LLAMA_ARG": "1"})


def other_engine(proposal: Proposal, spec: ServiceSpec, weights: Path) -> tuple[Proposal, ServiceSpec]:
    assert proposal.image
    return replace(proposal, image=replace(proposal.image, package="xllamacpp==0")), spec


def other_driver(proposal: Proposal, spec: ServiceSpec, weights: Path) -> tuple[Proposal, ServiceSpec]:
    host = replace(proposal.plan.host, gpus=(Gpu("GB10", "580.1", "12.1"),))
    return replace(proposal, plan=replace(proposal.plan, host=host)), spec


def newer_weights(proposal: Proposal, spec: ServiceSpec, weights: Path) -> tuple[Proposal, ServiceSpec]:
    os.utime(weights, ns=(1, 1))
    return proposal, spec


def no_weights(proposal: Proposal, spec: ServiceSpec, weights: Path) -> tuple[Proposal, ServiceSpec]:
    weights.unlink()
    return proposal, spec


@pytest.mark.real
@pytest.mark.parametrize(
    "change",
    [same, other_flags, other_environment, other_engine, other_driver, newer_weights, no_weights],
)
async def test_a_proof_holds_for_what_was_proved(change: Change, pulled: Home, tmp_path: Path) -> None:
    home = Home(tmp_path)
    shutil.copytree(pulled.weights, home.weights)
    workspace = Workspace(home)
    proposal = workspace.propose(Ask("smollm2", 2048, port=8000, name="one"), workspace.host())[0]
    spec, weights = make_spec(proposal, home, RunOptions()), next(home.weights.glob("*/*.gguf"))
    before = await proof_digest(proposal, home, spec)
    after = await proof_digest(*_changed(change, proposal, spec, weights, home))
    assert before is not None
    assert (after == before) == (change is same)
    assert (after is None) == (change is no_weights)


def _changed(
    change: Change, proposal: Proposal, spec: ServiceSpec, weights: Path, home: Home
) -> tuple[Proposal, Home, ServiceSpec]:
    proposal, spec = change(proposal, spec, weights)
    return proposal, home, spec


def test_a_damaged_proof_is_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert read_proof(home, "one") is None
    forget_proof(home, "one")
    record_proof(home, "one", Proof("digest", "answer"))
    assert read_proof(home, "one") == Proof("digest", "answer")
    (tmp_path / "proofs" / "one.json").write_text("{")
    assert read_proof(home, "one") is None
    forget_proof(home, "one")
    assert not (tmp_path / "proofs" / "one.json").exists()


@pytest.mark.parametrize(("is_process", "available", "expected"), [
    (True, 150, True), (True, 20, True), (False, 150, False),
])  # fmt: skip
def test_the_memory_of_a_process_is_free_when_it_has_ended(
    is_process: bool, available: int, expected: bool
) -> None:
    release = ExpectedRelease(100, 100, is_process)
    assert is_released([AvailableSample(0.0, available)], release) is expected
