"""The JSON that `--json` prints: one document a command, each with its schema in `docs/json.md`.

These shapes are a promise to scripts: fields are added, never renamed, and `document` counts up when a
promise must break. Bytes are ints, speeds are tokens a second, bands are {low, expected, high}.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from firesteel import engines
from firesteel.errors import FiresteelError
from firesteel.facts.host import Host
from firesteel.launch import Launch
from firesteel.planner import Band
from firesteel.render import docker
from firesteel.rules import Finding, Proposal
from firesteel.run import Compared, Report, Service, death


class Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BandJson(Document):
    low: float
    expected: float
    high: float


class HostJson(Document):
    name: str
    title: str
    hardware: str | None
    cores: int
    memory_total_bytes: int
    memory_available_bytes: int
    room_bytes: int
    bandwidth_bytes_per_s: float | None
    bandwidth_kind: Literal["measured", "reported"]
    gpus: list[str]


class PartJson(Document):
    name: str
    bytes: BandJson
    basis: str
    why: str


class MemoryJson(Document):
    verdict: Literal["fits", "tight", "does not fit"]
    needed_bytes: BandJson
    room_bytes: int
    parts: list[PartJson]


class CacheJson(Document):
    bytes: int
    bytes_per_token: int
    state_bytes: int
    context: int
    users: int
    dtype: str


class SpeedJson(Document):
    decode_tokens_per_s: BandJson
    bound_tokens_per_s: float
    bytes_per_token: int
    bandwidth_bytes_per_s: float
    rung: str
    why: str


class SourceJson(Document):
    url: str
    seen: str


class FindingJson(Document):
    rule: str
    level: Literal["stop", "warn", "note"]
    says: str
    instead: str | None
    saw: str
    file: str | None
    line: int | None
    confidence: str
    sources: list[SourceJson]


class LaunchJson(Document):
    name: str
    model: str
    engine: str
    version: str | None
    image: str | None
    port: int
    sparks: int
    flags: dict[str, object]
    env: dict[str, str]
    argv: list[str]
    docker: str


class PlanJson(Document):
    """`firesteel plan MODEL --json`"""

    document: Literal["firesteel.plan/1"] = "firesteel.plan/1"
    name: str
    model: str
    status: str
    can_run: bool
    host: HostJson
    memory: MemoryJson
    cache: CacheJson
    speed: SpeedJson | None
    findings: list[FindingJson]
    notes: list[str]
    launch: LaunchJson
    others: list[str]


class ModelRowJson(Document):
    name: str
    model: str
    title: str
    engine: str
    status: str
    verdict: Literal["fits", "tight", "does not fit"]
    can_run: bool
    needed_bytes: BandJson
    decode_tokens_per_s: BandJson | None
    speed_from: str | None
    weights_from: str
    quality: list[dict[str, object]]


class ModelsJson(Document):
    """`firesteel models --json`"""

    document: Literal["firesteel.models/1"] = "firesteel.models/1"
    host: HostJson
    models: list[ModelRowJson]


class CheckJson(Document):
    """`firesteel check WHAT --json`"""

    document: Literal["firesteel.check/1"] = "firesteel.check/1"
    launches: int
    hardware: str | None
    findings: list[FindingJson]


class ComparedJson(Document):
    what: str
    unit: str
    planned: BandJson
    measured: float
    within: bool


class ProofJson(Document):
    name: str
    passed: bool
    saw: str


class VerifyJson(Document):
    """`firesteel verify --json`"""

    document: Literal["firesteel.verify/1"] = "firesteel.verify/1"
    name: str
    verified: bool
    checks: list[ProofJson]


class UpJson(Document):
    """`firesteel up --json`"""

    document: Literal["firesteel.report/1"] = "firesteel.report/1"
    name: str
    url: str
    model: str
    engine: str
    version: str | None
    verified: bool
    already_running: bool
    checks: list[ProofJson]
    compared: list[ComparedJson]
    start_s: float
    first_token_ms: float
    log: str


class ServiceJson(Document):
    name: str
    phase: Literal["starting", "ready", "stopping", "dead"]
    url: str
    pid: int | None
    started_at: float | None
    why: str | None
    log: str


class PsJson(Document):
    """`firesteel ps --json`"""

    document: Literal["firesteel.ps/1"] = "firesteel.ps/1"
    services: list[ServiceJson]


class LogsJson(Document):
    """`firesteel logs --json`"""

    document: Literal["firesteel.logs/1"] = "firesteel.logs/1"
    name: str
    path: str
    lines: list[str]


class StepJson(Document):
    command: list[str]
    env: dict[str, str]
    why: str
    undo: list[str] | None


class StepsJson(Document):
    """`firesteel up --dry-run --json`"""

    document: Literal["firesteel.steps/1"] = "firesteel.steps/1"
    name: str
    steps: list[StepJson]


class DoneJson(Document):
    """`firesteel down --json` and `firesteel pull --json`"""

    document: Literal["firesteel.done/1"] = "firesteel.done/1"
    done: list[str]


class RenderJson(Document):
    """`firesteel render MODEL --json`"""

    document: Literal["firesteel.render/1"] = "firesteel.render/1"
    name: str
    format: str
    text: str


class WelcomeJson(Document):
    """`firesteel --json`"""

    document: Literal["firesteel.welcome/1"] = "firesteel.welcome/1"
    host: HostJson
    fits: list[str]
    best: str | None
    running: list[ServiceJson]
    next: str


class ErrorJson(Document):
    """Any command that failed, with the exit code that it left with"""

    document: Literal["firesteel.error/1"] = "firesteel.error/1"
    kind: str
    message: str
    next: str
    exit_code: int


DOCUMENTS: tuple[type[Document], ...] = (
    WelcomeJson, ModelsJson, PlanJson, CheckJson, UpJson, VerifyJson,
    StepsJson, PsJson, LogsJson, DoneJson, RenderJson, ErrorJson,
)  # fmt: skip


def band(value: Band) -> BandJson:
    return BandJson(low=value.low, expected=value.expected, high=value.high)


def host_json(host: Host) -> HostJson:
    return HostJson(
        name=host.name,
        title=host.title,
        hardware=host.hardware,
        cores=host.cores,
        memory_total_bytes=host.memory_total_bytes,
        memory_available_bytes=host.memory_available_bytes,
        room_bytes=host.room_bytes,
        bandwidth_bytes_per_s=host.bandwidth_bytes_per_s,
        bandwidth_kind=host.bandwidth_kind,
        gpus=[gpu.name for gpu in host.gpus],
    )


def finding_json(finding: Finding) -> FindingJson:
    return FindingJson(
        rule=finding.rule,
        level=finding.level,
        says=finding.says,
        instead=finding.instead,
        saw=finding.saw,
        file=finding.spot.path if finding.spot else None,
        line=finding.spot.line if finding.spot else None,
        confidence=finding.confidence,
        sources=[SourceJson(url=source.url, seen=str(source.seen)) for source in finding.sources],
    )


def launch_json(launch: Launch) -> LaunchJson:
    return LaunchJson(
        name=launch.name,
        model=launch.model,
        engine=launch.engine,
        version=launch.version,
        image=launch.container.image if launch.container else None,
        port=launch.port,
        sparks=launch.sparks,
        flags=dict(launch.flags),
        env=dict(launch.env),
        argv=[*engines.program(launch.engine), *engines.argv(launch)],
        docker=docker(launch),
    )


def plan_json(proposal: Proposal, others: tuple[str, ...]) -> PlanJson:
    plan = proposal.plan
    memory, cache, speed = plan.memory, plan.cache, plan.speed
    return PlanJson(
        name=proposal.name,
        model=plan.launch.model,
        status=proposal.recipe.status if proposal.recipe else "untried",
        can_run=proposal.can_run,
        host=host_json(plan.host),
        memory=MemoryJson(
            verdict=memory.verdict,
            needed_bytes=band(memory.needed),
            room_bytes=memory.room_bytes,
            parts=[
                PartJson(name=p.name, bytes=band(p.bytes), basis=p.basis, why=p.why) for p in memory.parts
            ],
        ),
        cache=CacheJson(
            bytes=cache.bytes,
            bytes_per_token=cache.bytes_per_token,
            state_bytes=cache.state_bytes,
            context=cache.context,
            users=cache.users,
            dtype=cache.dtype,
        ),
        speed=SpeedJson(
            decode_tokens_per_s=band(speed.decode_tokens_per_s),
            bound_tokens_per_s=speed.bound_tokens_per_s,
            bytes_per_token=speed.bytes_per_token,
            bandwidth_bytes_per_s=speed.bandwidth_bytes_per_s,
            rung=speed.rung,
            why=speed.why,
        )
        if speed
        else None,
        findings=[finding_json(finding) for finding in proposal.findings],
        notes=list(plan.notes),
        launch=launch_json(plan.launch),
        others=list(others),
    )


def model_row(proposal: Proposal) -> ModelRowJson:
    plan, recipe, model = proposal.plan, proposal.recipe, proposal.model
    assert recipe is not None and model is not None
    return ModelRowJson(
        name=proposal.name,
        model=model.id,
        title=model.title,
        engine=plan.launch.engine,
        status=recipe.status,
        verdict=plan.memory.verdict,
        can_run=proposal.can_run,
        needed_bytes=band(plan.memory.needed),
        decode_tokens_per_s=band(plan.speed.decode_tokens_per_s) if plan.speed else None,
        speed_from=plan.speed.rung if plan.speed else None,
        weights_from=model.weights.provenance,
        quality=[{"suite": q.suite, "baseline": q.baseline, "this": q.this} for q in recipe.quality],
    )


def compared_json(row: Compared) -> ComparedJson:
    return ComparedJson(
        what=row.what, unit=row.unit, planned=band(row.planned), measured=row.measured, within=row.is_within
    )


def report_json(report: Report, already: bool) -> UpJson:
    return UpJson(
        name=report.name,
        url=report.url,
        model=report.model,
        engine=report.engine,
        version=report.version,
        verified=report.is_verified,
        already_running=already,
        checks=[ProofJson(name=check.name, passed=check.passed, saw=check.saw) for check in report.checks],
        compared=[compared_json(row) for row in report.compared],
        start_s=report.start_s,
        first_token_ms=report.first_token_ms,
        log=report.log,
    )


def service_json(service: Service) -> ServiceJson:
    state = service.state
    return ServiceJson(
        name=service.name,
        phase=service.phase,
        url=f"{service.spec.url}/v1",
        pid=state.engine.number if state and state.engine else None,
        started_at=state.started_at if state else None,
        why=death(state) if service.phase == "dead" else None,
        log=str(service.log),
    )


def error_document(error: FiresteelError) -> ErrorJson:
    return ErrorJson(kind=error.kind, message=error.what, next=error.next, exit_code=error.exit_code)
