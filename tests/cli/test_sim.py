"""`--sim` as a user types it: which scenario it is, and a new one by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import firesteel as library
from tests.conftest import Firesteel, run_firesteel
from tests.edge.sim.spark import free_port

SMALL = ("--context", "8192", "--users", "2")
QUICK = {"FIRESTEEL_SIM_SPEED": "200"}


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Firesteel]:
    """`firesteel --sim ...` in a home of its own; everything is stopped afterwards."""
    yield lambda *arguments: run_firesteel(tmp_path / "home", "--sim", *arguments, env=QUICK)
    run_firesteel(tmp_path / "home", "--sim", "down", "--all")


def test_the_scenario_is_printed(sim: Firesteel) -> None:
    assert "`idle`" in sim("ps").err
    assert "`collapse`" in sim("collapse", "ps").err
    again = sim("ps").err
    assert "`collapse`" in again and "--sim idle for a fresh one" in again


def test_a_new_scenario_has_nothing_pulled(sim: Firesteel, tmp_path: Path) -> None:
    container = library.plan("gpt-oss-20b", host_name="gb10")[0].plan.launch.container
    assert container is not None and sim("idle", "ps").code == 0
    (tmp_path / "home/sim/images.json").write_text(json.dumps([container.image]))
    ran = sim("no-pull", "up", "gpt-oss-20b", *SMALL, "--port", str(free_port()))
    assert ran.code != 0 and "pull rate limit" in ran.err, ran.err


def test_a_failed_start_prints_what_to_type(sim: Firesteel) -> None:
    """Both for firesteel and for the engine that failed."""
    ran = sim("crash", "up", "gpt-oss-120b-llamacpp", *SMALL, "--port", str(free_port()))
    hint = ran.err.partition("next: ")[2]
    assert ran.code == 1 and hint.startswith("firesteel --sim up "), ran.err
    assert " --context 4096" in hint and "--ctx-size" in hint and "--gpu-memory-utilization" not in hint
