"""One Ask gives one plan, whichever way it comes in: library, `up`, service file, gateway, `render`, `bench`,
`tune`.

What was measured here is put into the home first, so a way that plans without it gives other figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from firesteel.bench.load.measure import plan_of
from firesteel.bench.results.history import open_history
from firesteel.edge.home import Home, find_home, lock
from firesteel.edge.measured_memory import save_measured_memory
from firesteel.edge.sim.setup import create_spark, environment
from firesteel.edge.sim.spark import SimSpark
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.gateway.loader import job
from firesteel.launch import Ask
from firesteel.library.plans import host, plan, propose
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import Plan
from firesteel.planner.propose import Proposal
from firesteel.run.service import folder_of, load, write_spec
from firesteel.run.spec import RunOptions, make_spec
from firesteel.units import Band
from firesteel.values import replace
from firesteel.workspace import find_workspace
from tests.bench.stored_runs import SUBJECT, stored_run
from tests.cli.inside import inside
from tests.conftest import Firesteel

EMBEDDED = Ask("smollm2", context=2048, users=2, port=8123)
CONTAINER = Ask("gpt-oss-20b", context=8192, users=2, port=8123, engine="vllm")
OTHER_RELEASE = replace(CONTAINER, version="v0.26")
MORE_BYTES = 777 * 2**20
RATE = 12.5
"""No estimate gives these."""


@dataclass(frozen=True, slots=True)
class Figures:
    launch: str
    needed: Band
    decode: Band


def figures(plan: Plan) -> Figures:
    assert plan.speed is not None
    return Figures(launch_key(plan.launch), plan.memory.needed, plan.speed.decode_tokens_per_s)


@dataclass
class Machine:
    """A home with measurements of one Ask, and all plans that are made there."""

    ask: Ask
    home: Home
    run: Firesteel
    plans: list[Plan]

    def planned(self) -> set[Figures]:
        """Since the last call."""
        seen = {figures(plan) for plan in self.plans}
        self.plans.clear()
        return seen

    @property
    def sizes(self) -> tuple[str, ...]:
        return ("--context", str(self.ask.context), "--users", str(self.ask.users))

    @property
    def options(self) -> tuple[str, ...]:
        engine = ("--engine", self.ask.engine) if self.ask.engine else ()
        version = ("--engine-version", self.ask.version) if self.ask.version else ()
        return (*self.sizes, "--port", str(self.ask.port), *engine, *version)


@pytest.fixture(params=[EMBEDDED, CONTAINER, OTHER_RELEASE], ids=["embedded", "vllm", "vllm v0.26"])
def machine(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Machine:
    """This host for the embedded engine, a simulated Spark for a container."""
    ask: Ask = request.param
    env = {"FIRESTEEL_HOME": str(tmp_path / "home")}
    if ask.engine:
        create_spark(tmp_path / "spark", SimSpark())
        env = environment(tmp_path / "spark", os.environ)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    home = find_home()
    _measure(home, propose(ask, host())[0])
    plans = _recorded(monkeypatch)
    return Machine(ask, home, inside(home.root, monkeypatch, capsys), plans)


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    plans: list[Plan] = []
    proposing = import_module("firesteel.planner.propose")
    make_plan = proposing.plan

    def record(*arguments: Any, **options: Any) -> Plan:
        plan: Plan = make_plan(*arguments, **options)
        plans.append(plan)
        return plan

    monkeypatch.setattr(proposing, "plan", record)
    return plans


def _measure(home: Home, estimated: Proposal) -> None:
    """Its memory and its speed, both unlike the estimates."""
    plan = estimated.plan
    key, engine, version = launch_key(plan.launch), plan.launch.engine, plan.launch.version
    taken = round(plan.memory.needed.expected) + MORE_BYTES
    memory = MeasuredMemory(
        key, engine, version, taken, "2026-11-15", checkpoint_bytes=plan.weights.total_bytes,
        planned_kv_bytes=plan.kv_bytes,
    )  # fmt: skip
    save_measured_memory(home, memory)
    subject = replace(SUBJECT, engine=engine, version=version, launch_key=key)
    with open_history(home) as history:
        history.begin(stored_run("one", [RATE, RATE + 0.1, RATE - 0.1, RATE], subject=subject).run)
    measured = propose(estimated.ask, host())[0].plan
    assert figures(measured).launch == key
    assert figures(measured).needed != figures(plan).needed
    assert figures(measured).decode.expected == pytest.approx(RATE, rel=0.02)


@pytest.fixture
def expected(machine: Machine) -> tuple[Proposal, Figures]:
    best = propose(machine.ask, host())[0]
    assert machine.planned() == {figures(best.plan)}
    return best, figures(best.plan)


without_release = pytest.mark.parametrize(
    "machine", [EMBEDDED, CONTAINER], indirect=True, ids=["embedded", "vllm"]
)
"""A service file has no key for the engine's release."""


@pytest.fixture
def service_file(machine: Machine, tmp_path: Path) -> Path:
    ask, path = machine.ask, tmp_path / "service.yaml"
    entry = f"recipe: {ask.model}, context: {ask.context}, users: {ask.users}, port: {ask.port}"
    path.write_text(f"models:\n  {ask.model}: {{{entry}}}\n")
    return path


@pytest.fixture
def stored(machine: Machine, expected: tuple[Proposal, Figures]) -> Iterator[str]:
    """The same as a service that is about to start, as far as its files and its lock tell."""
    best, _ = expected
    folder = folder_of(machine.home, best.name)
    write_spec(folder, make_spec(best, machine.home, RunOptions()))
    with lock(folder / "supervisor.lock"):
        yield best.name


@without_release
def test_the_library(machine: Machine, expected: tuple[Proposal, Figures]) -> None:
    assert machine.ask.model is not None
    plans = plan(machine.ask.model, context=machine.ask.context, users=machine.ask.users)
    assert figures(plans[0].plan) == expected[1]


def test_plan_and_up_and_render(machine: Machine, expected: tuple[Proposal, Figures]) -> None:
    model = str(machine.ask.model)
    for arguments in (
        ("plan", model, *machine.options, "--json"),
        ("up", model, *machine.options, "--dry-run", "--json"),
        ("render", model, "--host", "local", *machine.options, "--json"),
    ):
        ran = machine.run(*arguments)
        assert ran.code == 0, ran.err
        assert machine.planned() == {expected[1]}, arguments


@without_release
def test_a_service_file_gives_the_same_commands(
    machine: Machine, expected: tuple[Proposal, Figures], service_file: Path
) -> None:
    plain = machine.run("up", str(machine.ask.model), *machine.options, "--dry-run", "--json")
    machine.planned()
    from_file = machine.run("up", "-f", str(service_file), "--dry-run", "--json")
    assert from_file.code == 0, from_file.err
    assert machine.planned() == {expected[1]}
    assert from_file.json == plain.json


@without_release
def test_the_gateway(machine: Machine, expected: tuple[Proposal, Figures], service_file: Path) -> None:
    (model,) = job.read(str(service_file), machine.home).models
    assert machine.planned() == {expected[1]}
    assert model.bytes == round(expected[1].needed.expected)


def test_bench(machine: Machine, expected: tuple[Proposal, Figures], stored: str) -> None:
    service = load(machine.home, stored)
    assert service is not None and service.spec.ask.version == expected[0].ask.version
    plan = plan_of(find_workspace(), service)
    assert plan is not None and figures(plan) == expected[1]


def test_tune(machine: Machine, expected: tuple[Proposal, Figures], stored: str) -> None:
    ran = machine.run("tune", stored, "--dry-run", "--json")
    assert ran.code == 0, ran.err
    assert figures(machine.plans[-1]) == expected[1]


def test_the_command_that_is_derived(
    machine: Machine, expected: tuple[Proposal, Figures], stored: str
) -> None:
    service = load(machine.home, stored)
    assert service is not None
    ran = machine.run("up", *service.spec.up_arguments, "--dry-run", "--json")
    assert ran.code == 0, ran.err
    assert machine.planned() == {expected[1]}
