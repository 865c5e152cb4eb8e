"""The jobs that need a plan: read a service file, or bring a model up.

Planning, warming and verifying take a core for seconds and 200 MB; the process that carries the streams has
neither to spare. A load ends with the process that asked for it: when its stdin closes, or at SIGTERM, it
stops what it started. `load` gets the values that `read` gave out, not the file's name: a file that changes
in between must not start something that the scheduler has not counted.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from firesteel.catalog.recipe import RecipeRequests
from firesteel.edge import files
from firesteel.edge.home import Home, find_home, is_locked
from firesteel.edge.host import process
from firesteel.edge.host.signals import cancel_on_signals
from firesteel.edge.hub.cache import find_store
from firesteel.engines.engine import adapter_request
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.host.hardware import Host
from firesteel.gateway.discovery import identity, outside_identity, running_model
from firesteel.gateway.interfaces import CancelPolicy, ServerApiName, Timeouts
from firesteel.gateway.loader.child import end_with_parent, reason_of, say
from firesteel.gateway.loader.command import CommandJob, load_command
from firesteel.gateway.service_config import (
    ModelConfig,
    ModelParameters,
    Normalizer,
    PlannedFigures,
    Reason,
    ServiceConfig,
)
from firesteel.hosts.cluster.on_nodes import node_key_file
from firesteel.hosts.cluster.up import bring_up_joined
from firesteel.launch import LOOPBACK, AdapterReference, Ask, EngineName, Runtime
from firesteel.planner.advice import require_runnable
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import Plan
from firesteel.planner.propose import Proposal
from firesteel.render import clients
from firesteel.run.down import freed_bytes
from firesteel.run.endpoints import free_port, port_of, reached_at
from firesteel.run.events import PhaseDone, PhaseProgress, PlanReady, ServiceReady
from firesteel.run.service import Service, all_services, folder_of, read_proof
from firesteel.run.service import load as find_service
from firesteel.run.spec import RunOptions
from firesteel.run.start import adopt_all, earlier_starts, last_verified, record_verified
from firesteel.run.up import bring_up
from firesteel.service_file import (
    ModelEntry,
    NodeModel,
    ServiceFile,
    asks,
    on_nodes,
    read_service_file,
    written_ports,
)
from firesteel.service_settings import ParameterEntry
from firesteel.units import MIB, Band, show_bytes
from firesteel.values import Value, plain, replace
from firesteel.workspace import Workspace

_UNKNOWN_LOAD_S = 60.0
"""For the scheduler's arithmetic; it is never shown."""
_GATEWAY_BYTES = 64 * MIB
"""Of the gateway's process, without bodies and buffers of its clients; `benchmarks/gateway` measures it."""
_POLL_S = 0.2
_OTHERS_S = 6 * 3600
"""As long as `up` itself may take."""


# --- read ---


def read(path: str, home: Home) -> ServiceConfig:
    """Read a service file and plan each of its models for this host."""
    path = str(Path(path).absolute())
    file = read_service_file(path, files.read_text(Path(path)))
    adopt_all(home)
    workspace = Workspace(home)
    host, running = workspace.host(), {service.name: service for service in all_services(home)}
    external_bytes = sum(entry.memory or 0 for entry in file.models.values() if entry.addresses)
    ceiling = _ceiling(file, host, [running[name] for name in file.models if name in running], external_bytes)
    # Each model is planned as if it ran alone: which of them run together is the scheduler's decision.
    alone = replace(host, memory_available_bytes=host.keep_free_bytes + max(0, ceiling - external_bytes))
    ask_by_name, node_models, avoid = asks(file), on_nodes(file), written_ports(file)
    return ServiceConfig(
        path=path,
        listen=file.listen,
        ceiling_bytes=ceiling,
        keep_free_bytes=host.keep_free_bytes,
        models=tuple(
            _own_model(path, entry, ask_by_name[name], avoid, workspace, alone)
            if name in ask_by_name
            else _command_model(path, name, entry, avoid, host, ceiling - external_bytes)
            if entry.cmd
            else _job_model(node_job(path, node_models[name], home), entry, node_models[name].urls)
            if name in node_models and not node_models[name].has_here
            else _external_model(path, name, entry, node_models.get(name), home)
            for name, entry in file.models.items()
        ),
        never_together=(*file.never_together, *node_turns(node_models, workspace, host)),
        queue=file.queue.size,
        max_wait_s=file.queue.max_wait,
        min_dwell_s=file.queue.min_dwell,
        gateway_bytes=file.memory.gateway,
        alerts=file.alerts,
        cors=file.cors,
        keepalives=clients.keepalive_events(),
        normalizers=tuple(
            Normalizer(
                client,
                each.name,
                agents,
                each.since,
                each.until,
                each.kind,
                each.pattern,
                each.replacement,
                each.never,
            )
            for client, agents, each in clients.normalizers()
        ),
        normalize=clients.chosen_normalizers(file.normalize),
        cures=clients.cures(),
        disk_folders=tuple(dict.fromkeys((str(home.root), str(find_store(home).root)))),
    )


def _ceiling(file: ServiceFile, host: Host, own: list[Service], external_bytes: int) -> int:
    """The file's ceiling, or what would be free if none of its models ran; never what the host must keep and
    the gateway itself takes."""
    gateway_bytes = _GATEWAY_BYTES + file.memory.gateway
    most = max(0, host.memory_total_bytes - host.keep_free_bytes - gateway_bytes)
    if file.memory.ceiling is not None:
        return min(file.memory.ceiling, most)
    free = host.room_bytes + sum(freed_bytes(service) for service in own) + external_bytes
    return max(0, min(most, free - gateway_bytes))


def _external_model(
    path: str, name: str, entry: ModelEntry, node: NodeModel | None, home: Home
) -> ModelConfig:
    """One that others run: at a URL, or on this host and on nodes, where `up -f` starts it."""
    addresses = node.urls if node else entry.addresses
    urls = tuple(url.rstrip("/").removesuffix("/v1").rstrip("/") for url in addresses)
    key = str(node_key_file(home, name)) if node else entry.key
    return ModelConfig(
        name,
        outside_identity(urls, entry.model, key),
        urls,
        entry.memory or 0,
        is_outside=True,
        start=f"firesteel up -f {shlex.quote(path)} starts it" if node else "start it there",
        route=entry.route or "least-busy",
        model=entry.model,
        key=key,
        upstream=entry.upstream,
        **model_parameters(entry, RecipeRequests()),
    )


def _command_model(
    path: str, name: str, entry: ModelEntry, avoid: tuple[int, ...], host: Host, room_bytes: int
) -> ModelConfig:
    assert entry.cmd is not None and entry.memory is not None
    floor_bytes = host.keep_free_bytes // 2
    job = CommandJob(
        name, entry.cmd, entry.port, entry.health or "/health", entry.memory, floor_bytes, entry.env, path,
        avoid=avoid,
    )  # fmt: skip
    why_not = None
    if entry.memory > room_bytes:
        what = f"{name} needs {show_bytes(entry.memory)}; there is room for {show_bytes(max(0, room_bytes))}"
        why_not = Reason(what, f"less `memory` for `{name}` in {path}", "does not fit")
    return _job_model(job, entry, (job.url,) if job.port else (), why_not)


def _job_model(
    job: CommandJob, entry: ModelEntry, urls: tuple[str, ...], why_not: Reason | None = None
) -> ModelConfig:
    return ModelConfig(
        job.name,
        job.identity,
        urls,
        job.memory_bytes,
        pinned=entry.pinned,
        preload=entry.preload,
        ttl_s=entry.ttl,
        route=entry.route or "least-busy",
        model=entry.model,
        upstream=entry.upstream,
        ask=plain(job),
        why_not=why_not,
        **model_parameters(entry, RecipeRequests()),
    )


def _own_model(
    path: str, entry: ModelEntry, ask: Ask, avoid: tuple[int, ...], workspace: Workspace, host: Host
) -> ModelConfig:
    assert ask.name is not None
    bare = ModelConfig(
        ask.name,
        "",
        (reached_at(LOOPBACK, ask.port),) if ask.port else (),
        pinned=entry.pinned,
        preload=entry.preload,
        ttl_s=entry.ttl,
        **model_parameters(entry, RecipeRequests()),
    )
    try:
        best = (workspace.propose_joined if ask.sparks else workspace.propose)(ask, host)[0]
    except FiresteelError as error:
        return replace(bare, why_not=in_the_file(reason_of(error), ask.name, path))
    launch, objection = best.plan.launch, _objection(best)
    return replace(
        bare,
        **model_parameters(
            entry,
            best.recipe.requests if best.recipe else RecipeRequests(),
            tuple(adapter.name for adapter in best.adapters),
            launch.engine,
        ),
        identity=_identity(best, ask.port),
        bytes=round(best.plan.memory.needed.expected),
        load_s=load_time(best, workspace.home).all_s or _UNKNOWN_LOAD_S,
        engine=launch.engine,
        context=best.plan.cache.context,
        users=best.plan.cache.users,
        planned=planned_figures(best.plan),
        ask={
            "name": ask.name, "recipe": ask.model, "context": ask.context,
            "users": ask.users if best.recipe else best.plan.cache.users,  # it depends on the free memory
            "port": ask.port, "avoid": avoid, "path": path, "identity": _identity(best, ask.port),
            "runtime": ask.runtime, "engine_path": ask.engine_path, "sparks": ask.sparks,
            "fallback": entry.fallback_recipe, "adapters": entry.adapters,
        },
        why_not=in_the_file(objection, ask.name, path) if objection else None,
    )  # fmt: skip


def planned_figures(plan: Plan) -> PlannedFigures:
    """The slowest stream is one of a full batch, or one deep in its context; the fastest has the engine to
    itself, and its drafts are right."""
    memory, speed, pool = plan.memory.needed, plan.speed, plan.cache.pool
    block = max((group.block_size for group in pool.groups), default=1) if pool else 1
    if speed is None:
        return PlannedFigures(memory, cache_block_tokens=block)
    alone, batch = speed.decode_tokens_per_s, speed.batch
    bands = [alone, *(band for _, band in speed.at_depth)]
    bands += [batch.per_user_tokens_per_s] if batch else []
    fastest = [alone.high, *(drafted.decode_tokens_per_s.high for drafted in speed.drafted)]
    decode = Band(min(band.low for band in bands), alone.expected, max(fastest))
    total = batch.total_tokens_per_s if batch else alone
    prefill = speed.prefill.tokens_per_s.expected if speed.prefill else None
    return PlannedFigures(memory, decode, total, bool(speed.drafted), prefill, block)


def _identity(proposal: Proposal, port: int | None) -> str:
    url = reached_at(LOOPBACK, port) if port else ""
    return identity(launch_key(proposal.plan.launch), url, False)


def _objection(proposal: Proposal) -> Reason | None:
    try:
        require_runnable(proposal)
    except FiresteelError as error:
        return reason_of(error)
    return None


def in_the_file(reason: Reason, name: str, path: str) -> Reason:
    """Advice on an option of `up` as advice on a line of the service file: `serve` has no such option."""
    option = re.fullmatch(r"--(context|users|port) ([0-9]+)", reason.next)
    if not option or not path:
        return reason
    return replace(reason, next=f"`{option[1]}: {option[2]}` for `{name}` in {path}")


# --- load ---


class Job(Value):
    """What to start; the fields of `ModelConfig.ask`."""

    name: str
    recipe: str
    port: int | None = None
    """None: a free one, taken when it is loaded."""
    avoid: tuple[int, ...] = ()
    """Ports of others in the file."""
    context: int | None = None
    users: int | None = None
    path: str = ""
    identity: str = ""
    runtime: Runtime | None = None
    engine_path: str | None = None
    sparks: int | None = None
    fallback: str | None = None
    adapters: Mapping[str, str] = {}


def read_job(text: str) -> Job | CommandJob:
    try:
        fields = json.loads(text)
        fields["avoid"] = tuple(fields.get("avoid", ()))
        return CommandJob(**{**fields, "cmd": tuple(fields["cmd"])}) if "cmd" in fields else Job(**fields)
    except (ValueError, TypeError) as error:
        raise UsageError(f"no job to load: {error}", next="firesteel serve") from None


async def load(job: Job | CommandJob, home: Home) -> None:
    await _after_others(job.name, home)
    if isinstance(job, CommandJob):
        await load_command(job, home)
        return
    began = process.uptime()
    while True:
        try:
            await _bring_up(job, home)
            return
        except FiresteelError:
            # `upgrade` may have begun to start it while this job was planning.
            if process.uptime() - began > _OTHERS_S or not is_locked(home.services / job.name / "work.lock"):
                raise
        await _after_others(job.name, home)


async def _bring_up(job: Job, home: Home) -> None:
    workspace = Workspace(home)
    host = await asyncio.to_thread(workspace.host)
    ask = Ask(
        job.recipe, job.context, job.users, _port(job, home), name=job.name,
        runtime=job.runtime, engine_path=job.engine_path, sparks=job.sparks,
        adapters=tuple(AdapterReference(*each) for each in job.adapters.items()),
    )  # fmt: skip
    proposals = (workspace.propose_joined if job.sparks else workspace.propose)(ask, host)
    chosen = next((found for found in proposals if _identity(found, job.port) == job.identity), proposals[0])
    clock = LoadClock(load_time(chosen, home), process.uptime())
    options = RunOptions(service_file=job.path, is_swapped_in=True)
    started = (
        bring_up_joined(chosen, home, options, fallback=job.fallback)
        if job.sparks
        else bring_up(chosen, home, options)
    )
    async for event in started:
        now_s = process.uptime()
        if isinstance(event, (PhaseProgress, PhaseDone)):
            kind = "doing" if isinstance(event, PhaseProgress) else "done"
            say({kind: {"phase": event.phase, "words": event.text, "eta_s": clock.left_s(event, now_s)}})
        elif isinstance(event, PlanReady):
            needed = show_bytes(round(event.proposal.plan.memory.needed.expected))
            left_s = clock.took.all_s
            say({"done": {"phase": "plan", "words": f"{job.name} needs {needed}", "eta_s": left_s}})
        elif isinstance(event, ServiceReady):
            is_brief = event.report.is_brief
            load_s = None if event.already else clock.keep(job.name, home, now_s, is_brief=is_brief)
            service = find_service(home, job.name)
            if service is None:
                raise FiresteelError(
                    f"{job.name} came up and is gone again", next=f"firesteel logs {job.name}"
                )
            running = replace(running_model(home, service), is_found=event.already, load_s=load_s)
            say({"up": plain(running)})


def _port(job: Job, home: Home) -> int:
    """What runs already keeps its own."""
    if job.port is not None:
        return job.port
    running = find_service(home, job.name)
    return (port_of(running) if running and running.phase != "dead" else None) or free_port(home, job.avoid)


async def _after_others(name: str, home: Home) -> None:
    """Waits for another `up` of the same name: what it leaves running may be what this job is for."""
    lock, began = home.services / name / "work.lock", process.uptime()
    while is_locked(lock) and process.uptime() - began < _OTHERS_S:
        say({"doing": {"phase": "launch", "words": "another firesteel is starting it", "eta_s": None}})
        await asyncio.sleep(_POLL_S)


# --- the process ---


async def _cancellable(job: Coroutine[Any, Any, None]) -> None:
    cancel_on_signals()
    await job


def read_service_job(path: str) -> None:
    end_with_parent()
    say({"read": plain(read(path, find_home()))})


def load_job(text: str) -> None:
    job = read_job(text)
    end_with_parent()
    try:
        asyncio.run(_cancellable(load(job, find_home())))
    except FiresteelError as error:
        reason = in_the_file(reason_of(error), job.name, job.path)
        raise type(error)(reason.what, next=reason.next) from None


# --- what is changed in requests ---


def model_parameters(
    entry: ModelEntry, requests: RecipeRequests, adapters: tuple[str, ...] = (), engine: EngineName = "vllm"
) -> ParameterFields:
    """What the gateway changes in a model's requests: what the recipe knows of requests is a default below
    those of the file; an adapter is an alias that asks the engine for it."""
    own = replace(
        _of_entry(entry.parameters),
        recipe=requests.body,
        recipe_for_tools=requests.tool_body if requests.for_tools else {},
    )
    in_requests = engine == "llamacpp" and bool(adapters)
    if in_requests:
        own = replace(own, fixed={**own.fixed, **adapter_request(len(adapters), None)})
    by_alias = {name: own.overridden(_of_entry(each)) for name, each in entry.aliases.items()}
    for at, name in enumerate(adapters):
        asked = (
            ModelParameters(fixed=adapter_request(len(adapters), at))
            if in_requests
            else ModelParameters(served_name=name)
        )
        by_alias[name] = own.overridden(asked)
    fallbacks = entry.fallback.by_reason() if entry.fallback else {}
    limits = entry.timeouts
    return {
        "cancel": entry.cancel,
        "timeouts": Timeouts(limits.first_byte, limits.gap, limits.answer),
        "fallbacks": fallbacks,
        "aliases": tuple(by_alias),
        # llama.cpp's own `/v1/messages` drops the field that names an adapter (build 11549).
        "speaks": ("chat",) if in_requests else entry.speaks,
        "parameters": own,
        "alias_parameters": {name: each for name, each in by_alias.items() if each != own},
    }


class ParameterFields(TypedDict):
    cancel: CancelPolicy
    timeouts: Timeouts
    fallbacks: dict[str, str]
    speaks: tuple[ServerApiName, ...]
    aliases: tuple[str, ...]
    parameters: ModelParameters
    alias_parameters: dict[str, ModelParameters]


def _of_entry(entry: ParameterEntry) -> ModelParameters:
    limits = entry.limits
    return ModelParameters(entry.defaults, entry.fixed, entry.strip, limits.max_tokens, limits.context)


# --- models that other hosts serve (`node: spark2`) ---

_RUNNER = (sys.executable, "-P", "-m", "firesteel.hosts.cluster.node_runner")


def node_job(path: str, model: NodeModel, home: Home) -> CommandJob:
    """A process here that starts, watches and stops it there. It takes no memory of this host."""
    name, port = model.ask.name, model.ask.port
    assert name is not None and port is not None
    return CommandJob(
        name,
        (*_RUNNER, str(folder_of(home, name)), json.dumps(plain(model))),
        port,
        "/health",
        memory_bytes=0,
        path=path,
        address=next(iter(model.addresses.values())),
        secrets=str(home.secrets_path(name)),
    )


def node_turns(
    models: Mapping[str, NodeModel], workspace: Workspace, host: Host
) -> tuple[tuple[str, ...], ...]:
    """The models of each node that do not fit there together. Sparks are alike: this host stands for it."""
    idle = replace(host, memory_available_bytes=host.memory_total_bytes)
    by_node: dict[str, list[NodeModel]] = {}
    for model in models.values():
        for node in () if model.has_here else model.addresses:
            by_node.setdefault(node, []).append(model)
    return tuple(
        tuple(model.ask.name or "" for model in group)
        for group in by_node.values()
        if len(group) > 1 and _needed_bytes(group, workspace, idle) > idle.room_bytes
    )


def _needed_bytes(models: Sequence[NodeModel], workspace: Workspace, host: Host) -> float:
    total = 0.0
    for model in models:
        with suppress(FiresteelError):  # the node itself says why it cannot serve it, when it is asked to
            total += workspace.propose(model.ask, host)[0].plan.memory.needed.expected
    return total


# --- how long a load takes ---


class LoadTime(Value):
    """Expected seconds of a load; None: unknown."""

    launch_s: float | None
    """Until it answers: from the last start here, or as planned."""
    proof_s: float | None = None
    """From there until it is warm and verified, from the last load here."""
    whole_s: float | None = None

    @property
    def all_s(self) -> float | None:
        return self.whole_s if self.whole_s is not None else self.launch_s


def load_time(proposal: Proposal, home: Home) -> LoadTime:
    launch, speed = proposal.plan.launch, proposal.plan.speed
    before = earlier_starts(home, proposal.name, launch.engine, launch.version)
    planned_s = speed.start_up.seconds.expected if speed and speed.start_up else None
    launch_s = sum(before[-1].values()) if before else planned_s
    is_brief = read_proof(home, proposal.name) is not None
    last = last_verified(home, proposal.name, launch.engine, launch.version, is_brief=is_brief)
    return LoadTime(launch_s, last.proof_s, last.whole_s) if last else LoadTime(launch_s)


class LoadClock:
    """Estimates the time until a load is verified, from planning on. During a download there is no estimate.

    Durations of earlier loads are stored with the model's starts (`run/start.py`). During the
    engine's own start its progress is known; warm-up and verification are expected to take as long as the
    last time.
    """

    def __init__(self, took: LoadTime, now_s: float) -> None:
        self.took = took
        self._began_s = self._last_s = now_s
        self._launched_s: float | None = None
        self._answered_s: float | None = None
        self._last_phase, self._download_s = "", 0.0

    def left_s(self, event: PhaseProgress | PhaseDone, now_s: float) -> float | None:
        self._record(event, now_s)
        left_s = self._left_s(event, now_s)
        return round(left_s, 1) if left_s is not None and left_s > 0 else None

    def _left_s(self, event: PhaseProgress | PhaseDone, now_s: float) -> float | None:
        proof_s = self.took.proof_s
        if event.phase in ("plan", "check"):
            return self.took.all_s
        if self._answered_s is not None:
            return None if proof_s is None else proof_s - (now_s - self._answered_s)
        if event.phase != "launch":
            return None
        left_s = event.eta_s if isinstance(event, PhaseProgress) else None
        if left_s is None and self.took.launch_s is not None and self._launched_s is not None:
            left_s = self.took.launch_s - (now_s - self._launched_s)
        return left_s + (proof_s or 0.0) if left_s is not None and left_s >= 0 else None

    def _record(self, event: PhaseProgress | PhaseDone, now_s: float) -> None:
        if self._last_phase == "pull":
            self._download_s += now_s - self._last_s
        self._last_phase, self._last_s = event.phase, now_s
        if event.phase == "launch" and self._launched_s is None:
            self._launched_s = now_s
        has_answered = event.phase in ("warm", "verify") or (
            event.phase == "launch" and isinstance(event, PhaseDone)
        )
        if has_answered and self._answered_s is None:
            self._answered_s = now_s

    def keep(self, name: str, home: Home, now_s: float, *, is_brief: bool = False) -> float:
        """Store the duration, as the estimate for the next load."""
        whole_s = now_s - self._began_s - self._download_s
        if self._answered_s is not None:
            record_verified(home, name, now_s - self._answered_s, whole_s, is_brief=is_brief)
        return round(whole_s, 1)
