"""Warm an engine that has just come up, check that it asks for its key, verify it, and write its report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path

from firesteel import engines
from firesteel.edge.files.home import Home
from firesteel.edge.files.measured_memory import save_measured_memory
from firesteel.edge.files.secrets import read_secrets
from firesteel.edge.host import process
from firesteel.edge.host.memory import meminfo
from firesteel.edge.http.poll import get_from_engine
from firesteel.errors import FiresteelError
from firesteel.launch import Launch
from firesteel.planner import MeasuredMemory, launch_key
from firesteel.proposals import Proposal
from firesteel.run.events import Event, PhaseDone, PhaseProgress, ServiceReady
from firesteel.run.report import Report, compare, write_report
from firesteel.run.service import MAX_TAIL_BYTES, Service, ServiceSpec, folder_of, last_lines, load
from firesteel.run.start.listen import key_in
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import expected, write_expected
from firesteel.run.verify.verify import Verification, verify
from firesteel.run.verify.warm_up import warm


async def prove(proposal: Proposal, home: Home, spec: ServiceSpec, start_s: float) -> AsyncIterator[Event]:
    """The last event is ServiceReady; wrong answers raise."""
    expectations, key = expected(proposal), key_of(spec)
    folder = folder_of(home, spec.name)
    write_expected(folder, expectations)
    await _require_key(spec)
    async for event in warm(spec, expectations, key=key):
        yield event
    verification = Verification(())
    async for item in verify(
        spec.url, spec.model, expectations, key=key, read_log=lambda: _log(folder), thorough=False
    ):
        if isinstance(item, str):
            yield PhaseProgress("verify", item)
        elif isinstance(item, Verification):
            verification = item
    service = load(home, spec.name)
    if service is None or service.phase in ("stopping", "dead"):
        raise FiresteelError(f"{spec.name} is gone", next=f"firesteel logs {spec.name}")
    require_passed(spec, verification)
    yield PhaseDone("verify", _summary(verification.checks))
    report = _report(proposal, service, verification, start_s)
    write_report(folder, report)
    _record_memory(proposal, home, service)
    yield ServiceReady(report)


def key_of(spec: ServiceSpec) -> str | None:
    return key_in(read_secrets(Path(spec.secrets))) if spec.is_guarded_by_key else None


async def _require_key(spec: ServiceSpec) -> None:
    """A service that other hosts can reach has to refuse requests without its key."""
    if not spec.is_guarded_by_key:
        return
    status, _ = await asyncio.to_thread(get_from_engine, f"{spec.url}/v1/models")
    if status != 401:
        raise FiresteelError(
            f"{spec.name} answers HTTP {status} to requests without a key, and other hosts can reach it; "
            "it was stopped",
            next="firesteel up without --listen",
        )


def _log(folder: Path) -> str:
    return "\n".join(last_lines(folder / "engine.log", MAX_TAIL_BYTES))


def require_passed(spec: ServiceSpec, verification: Verification) -> None:
    if not verification.failed:
        return
    if verification.is_unanswered:
        last = verification.failed[-1]
        how = last.observed.removeprefix("the engine stopped answering: ")
        problem = f"and then stopped answering: {how} ({last.name})"
    else:
        observed = "; ".join(f"{check.name}: {check.observed}" for check in verification.failed)
        is_wrong = any(check.cause == "wrong" for check in verification.failed)
        problem = f"but {'its answers are wrong' if is_wrong else 'answers with errors'} ({observed})"
    raise FiresteelError(
        f"{spec.name} came up, {problem}; it was stopped", next=f"firesteel logs {spec.name}"
    )


def _summary(checks: tuple[CheckResult, ...]) -> str:
    passed = ", ".join(check.name for check in checks if check.passed)
    failed = ", ".join(check.name for check in checks if not check.passed)
    return f"{passed}; failed, as a note: {failed}" if failed else passed


def _report(proposal: Proposal, service: Service, verification: Verification, start_s: float) -> Report:
    launch, spec = proposal.plan.launch, service.spec
    reported = engines.reported_memory(launch.engine, _log(service.folder))
    engine = service.state.engine if service.state else None
    return Report(
        name=spec.name,
        url=f"{spec.url}/v1",
        model=spec.model,
        engine=launch.engine,
        version=launch.version,
        checks=verification.checks,
        compared=compare(proposal.plan, reported, _process_bytes(engine, launch), verification.texts),
        start_s=start_s,
        first_token_ms=verification.texts[0].first_token_s * 1000 if verification.texts else 0,
        log=str(service.log),
    )


def _record_memory(proposal: Proposal, home: Home, service: Service) -> None:
    """What the engine took, for the next plan of the same launch."""
    launch = proposal.plan.launch
    taken_bytes = _taken_bytes(service, launch)
    if taken_bytes is None:
        return
    reported = engines.reported_memory(launch.engine, _log(service.folder))
    save_measured_memory(
        home,
        MeasuredMemory(
            launch_key(launch), launch.engine, launch.version, taken_bytes, date.today().isoformat(),
            reported.weights_bytes, reported.kv_bytes, reported.kv_tokens,
            proposal.plan.weights.total_bytes, proposal.plan.kv_bytes,
        ),
    )  # fmt: skip


def _taken_bytes(service: Service, launch: Launch) -> int | None:
    """For a container, what the host lost since the start: no process shows what CUDA took."""
    if launch.container is None:
        engine = service.state.engine if service.state else None
        return _process_bytes(engine, launch)
    lost = service.spec.available_bytes - meminfo().available_bytes
    return lost if lost > 0 else None


def _process_bytes(engine: process.Pid | None, launch: Launch) -> int | None:
    """Our child is `docker run`, whose memory is not that of the container."""
    return process.memory(engine).total_bytes if engine and launch.container is None else None
