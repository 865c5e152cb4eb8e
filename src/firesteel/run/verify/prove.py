"""From an engine that answers to one that is right: warm it, check its key, verify it, write its report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import date
from pathlib import Path

from firesteel import engines
from firesteel.edge.files.home import Home, write_text
from firesteel.edge.files.measured_memory import remember
from firesteel.edge.files.secrets import read_secrets
from firesteel.edge.host import process
from firesteel.edge.host.memory import meminfo
from firesteel.edge.http.poll import get
from firesteel.errors import FiresteelError
from firesteel.launch import Launch
from firesteel.planner import MeasuredMemory, launch_key
from firesteel.rules import Proposal
from firesteel.run.events import Event, PhaseDone, PhaseProgress, ServiceReady
from firesteel.run.report import Report, compare
from firesteel.run.service import MAX_TAIL_BYTES, Service, ServiceSpec, folder_of, last_lines, load
from firesteel.run.start.listen import key_in
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import expected, write_expected
from firesteel.run.verify.verify import Verification, verify
from firesteel.run.verify.warm_up import warm


async def prove(proposal: Proposal, home: Home, spec: ServiceSpec, start_s: float) -> AsyncIterator[Event]:
    """The last event is Ready; answers that are wrong raise."""
    promised, key = expected(proposal), key_of(spec)
    folder = folder_of(home, spec.name)
    write_expected(folder, promised)
    await _need_key(spec)
    async for event in warm(spec, promised, key=key):
        yield event
    proof = Verification(())
    async for each in verify(spec.url, spec.model, promised, key=key, read_log=lambda: _log(folder)):
        if isinstance(each, str):
            yield PhaseProgress("verify", each)
        elif isinstance(each, Verification):
            proof = each
    service = load(home, spec.name)
    if service is None or service.phase in ("stopping", "dead"):
        raise FiresteelError(f"{spec.name} is gone", next=f"firesteel logs {spec.name}")
    _need_good(spec, proof)
    yield PhaseDone("verify", _came_to(proof.checks))
    report = _report(proposal, service, proof, start_s)
    write_text(folder / "report.json", json.dumps(asdict(report), indent=1))
    _remember(proposal, home, service)
    yield ServiceReady(report)


def key_of(spec: ServiceSpec) -> str | None:
    return key_in(read_secrets(Path(spec.secrets))) if spec.is_guarded_by_key else None


async def _need_key(spec: ServiceSpec) -> None:
    """Bound beyond this host, it must refuse whoever has no key."""
    if not spec.is_guarded_by_key:
        return
    status, _ = await asyncio.to_thread(get, f"{spec.url}/v1/models")
    if status != 401:
        raise FiresteelError(
            f"{spec.name} answers HTTP {status} without a key where others reach it; it was stopped",
            next="the same without --listen",
        )


def _log(folder: Path) -> str:
    return "\n".join(last_lines(folder / "engine.log", MAX_TAIL_BYTES))


def _need_good(spec: ServiceSpec, proof: Verification) -> None:
    if not proof.is_good:
        raise FiresteelError(
            f"{spec.name} came up, {_trouble(proof)}; it was stopped", next=f"firesteel logs {spec.name}"
        )


def _trouble(proof: Verification) -> str:
    if proof.is_unanswered:
        last = proof.failed[-1]
        how = last.saw.removeprefix("the engine stopped answering: ")
        return f"and then stopped answering: {how} ({last.name})"
    saw = "; ".join(f"{check.name}: {check.saw}" for check in proof.failed)
    is_wrong = any(check.cause == "wrong" for check in proof.failed)
    return f"but {'its answers are wrong' if is_wrong else 'answers with errors'} ({saw})"


def _came_to(checks: tuple[CheckResult, ...]) -> str:
    good = ", ".join(check.name for check in checks if check.passed)
    missed = ", ".join(check.name for check in checks if not check.passed)
    return f"{good}; not, and worth a look: {missed}" if missed else good


def _report(proposal: Proposal, service: Service, proof: Verification, start_s: float) -> Report:
    launch, spec = proposal.plan.launch, service.spec
    taken = engines.reported_memory(launch.engine, _log(service.folder))
    engine = service.state.engine if service.state else None
    return Report(
        name=spec.name,
        url=f"{spec.url}/v1",
        model=spec.model,
        engine=launch.engine,
        version=launch.version,
        checks=proof.checks,
        compared=compare(proposal.plan, taken, _process_bytes(engine, launch), proof.texts),
        start_s=start_s,
        first_token_ms=proof.texts[0].first_token_s * 1000 if proof.texts else 0,
        log=str(service.log),
    )


def _remember(proposal: Proposal, home: Home, service: Service) -> None:
    """What it took, for the next plan of the same launch."""
    launch = proposal.plan.launch
    took = _taken_bytes(service, launch)
    if took is None:
        return
    taken = engines.reported_memory(launch.engine, _log(service.folder))
    remember(
        home,
        MeasuredMemory(
            launch_key(launch), launch.engine, launch.version, took, date.today().isoformat(),
            taken.weights_bytes, taken.kv_bytes, taken.kv_tokens,
            proposal.plan.weights.total_bytes, proposal.plan.kv_bytes,
        ),
    )  # fmt: skip


def _taken_bytes(service: Service, launch: Launch) -> int | None:
    """Of a container, what the host has less than before: no process shows what CUDA took of it."""
    if launch.container is None:
        engine = service.state.engine if service.state else None
        return _process_bytes(engine, launch)
    lost = service.spec.available_bytes - meminfo().available_bytes
    return lost if lost > 0 else None


def _process_bytes(engine: process.Pid | None, launch: Launch) -> int | None:
    """A container's memory is not that of the `docker run` we are the parent of."""
    return process.memory(engine).total_bytes if engine and launch.container is None else None
