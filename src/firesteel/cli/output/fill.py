"""Values -> the documents that `--json` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from firesteel import engines, run
from firesteel.cli.output.documents import (
    BandJson,
    CacheGroupJson,
    CacheJson,
    ComparedJson,
    CompareJson,
    CrowdJson,
    DepthJson,
    DraftedJson,
    ErrorJson,
    FindingJson,
    HostJson,
    LaunchJson,
    MemoryJson,
    ModelRowJson,
    OtherJson,
    PartJson,
    PhaseJson,
    PlanJson,
    PrefillJson,
    PrintedJson,
    ProofJson,
    ServiceJson,
    SourceJson,
    SpeedJson,
    UpJson,
)
from firesteel.engines import requested_kv_cache_bytes
from firesteel.errors import FiresteelError
from firesteel.facts import Host
from firesteel.facts.evidence import Evidence
from firesteel.launch import Launch
from firesteel.planner import Band, Plan, Speed
from firesteel.render import docker
from firesteel.rules import Finding, Proposal, after

if TYPE_CHECKING:  # a plan is told without what runs it
    from firesteel.run import CheckResult, Compared, Report, Service


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


def source_json(source: Evidence) -> SourceJson:
    return SourceJson(url=source.url, seen=str(source.seen))


def finding_json(finding: Finding) -> FindingJson:
    return FindingJson(
        rule=finding.rule,
        level=finding.level,
        says=finding.says,
        instead=finding.instead,
        saw=finding.saw,
        file=finding.spot.path if finding.spot else None,
        line=finding.spot.line if finding.spot else None,
        column=finding.spot.column if finding.spot else None,
        fixable=finding.fix is not None,
        confidence=finding.confidence,
        sources=[source_json(source) for source in finding.sources],
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


def _cache_json(plan: Plan) -> CacheJson:
    cache, pool = plan.cache, plan.cache.pool
    told = requested_kv_cache_bytes(plan.launch)
    return CacheJson(
        bytes=cache.bytes,
        bytes_per_token=cache.bytes_per_token,
        state_bytes=cache.state_bytes,
        context=cache.context,
        users=cache.users,
        dtype=cache.dtype,
        pool_bytes=cache.pool_bytes if told is None else told,
        block_bytes=pool.block_bytes if pool else None,
        groups=[
            CacheGroupJson(
                kind=group.kind,
                layers=group.layers,
                block_tokens=group.block_size,
                page_bytes=group.page_bytes,
            )
            for group in (pool.groups if pool else ())
        ],
        request_bytes=pool.request_bytes if pool else None,
        least_bytes=pool.least_bytes if pool else None,
        printed=[
            PrintedJson(
                tokens=each.tokens,
                concurrency=each.concurrency_text,
                context=each.context,
                num_blocks=each.num_blocks,
                refused=each.refused is not None,
                largest_context=each.refused.largest_context if each.refused else None,
            )
            for each in plan.printed
        ],
        unsure=(pool.unsure or None) if pool else None,
    )


def _speed_json(speed: Speed) -> SpeedJson:
    crowd, prompt, start = speed.batch, speed.prefill, speed.start_up
    return SpeedJson(
        decode_tokens_per_s=band(speed.decode_tokens_per_s),
        bound_tokens_per_s=speed.bound_tokens_per_s,
        bytes_per_token=speed.bytes_per_token,
        bandwidth_bytes_per_s=speed.bandwidth_bytes_per_s,
        rung=speed.basis,
        why=speed.explanation,
        sources=list(speed.sources),
        parts_ms=dict(speed.parts_ms),
        at_depth=[DepthJson(depth=depth, decode_tokens_per_s=band(rate)) for depth, rate in speed.at_depth],
        crowd=CrowdJson(
            users=crowd.users,
            each_tokens_per_s=band(crowd.per_user_tokens_per_s),
            total_tokens_per_s=band(crowd.total_tokens_per_s),
            why=crowd.explanation,
        )
        if crowd
        else None,
        drafted=[
            DraftedJson(
                text=each.text, decode_tokens_per_s=band(each.decode_tokens_per_s), why=each.explanation
            )
            for each in speed.drafted
        ],
        prefill=PrefillJson(
            prompt_tokens=prompt.prompt_tokens,
            tokens_per_s=band(prompt.tokens_per_s),
            ttft_ms=band(prompt.ttft_ms),
            why=prompt.explanation,
        )
        if prompt
        else None,
        start_up=[
            PhaseJson(name=phase.name, seconds=band(phase.seconds), why=phase.explanation)
            for phase in (start.phases if start else ())
        ],
    )


def plan_json(proposal: Proposal, others: tuple[Proposal, ...]) -> PlanJson:
    plan = proposal.plan
    memory, speed = plan.memory, plan.speed
    return PlanJson(
        name=proposal.name,
        model=plan.launch.model,
        status=proposal.recipe.status if proposal.recipe else "untried",
        can_run=proposal.can_run,
        host=host_json(plan.host),
        memory=MemoryJson(
            verdict=memory.verdict,
            needed_bytes=band(memory.needed),
            room_bytes=memory.budget_bytes,
            parts=[
                PartJson(name=p.name, bytes=band(p.bytes), basis=p.basis, why=p.explanation)
                for p in memory.parts
            ],
        ),
        cache=_cache_json(plan),
        speed=_speed_json(speed) if speed else None,
        findings=[finding_json(finding) for finding in proposal.findings],
        notes=list(plan.notes),
        launch=launch_json(plan.launch),
        others=[OtherJson(name=other.name, why=after(proposal, other)) for other in others],
    )


def compare_json(ways: Iterable[Proposal]) -> CompareJson:
    return CompareJson(plans=[plan_json(way, ()) for way in ways])


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
        speed_from=plan.speed.basis if plan.speed else None,
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
        checks=proofs_json(report.checks),
        compared=[compared_json(row) for row in report.compared],
        start_s=report.start_s,
        first_token_ms=report.first_token_ms,
        log=report.log,
    )


def proofs_json(checks: Iterable[CheckResult]) -> list[ProofJson]:
    return [
        ProofJson(name=check.name, passed=check.passed, saw=check.observed, level=check.level)
        for check in checks
    ]


def service_json(service: Service) -> ServiceJson:
    state = service.state
    engine = state.engine if state and service.phase not in ("dead", "unkept") else None
    why, next_ = _trouble(service)
    return ServiceJson(
        name=service.name,
        phase=service.phase,
        url=f"{service.spec.url}/v1",
        pid=engine.number if engine else None,
        started_at=state.started_at if state else None,
        restarts=state.restarts if state else 0,
        at_boot=service.spec.at_boot,
        why=why,
        next=next_,
        log=str(service.log),
    )


def _trouble(service: Service) -> tuple[str | None, str | None]:
    """What is wrong with it, and what to type."""
    if not service.spec.start:
        return "it runs, and its files are damaged", f"firesteel down {service.name}"
    if service.phase == "unkept":
        return "its keeper was killed; the container runs on, unguarded", f"firesteel down {service.name}"
    if service.phase == "dead":
        return run.death(service.state), f"firesteel logs {service.name}, then {service.spec.again}"
    if service.state and service.state.why:  # it died, and its keeper starts it again
        return service.state.why, f"firesteel logs {service.name}"
    return None, None


def error_document(error: FiresteelError) -> ErrorJson:
    return ErrorJson(kind=error.kind, message=error.what, next=error.next, exit_code=error.exit_code)
