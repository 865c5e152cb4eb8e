"""firesteel as a library: what the commands can do, with values and events instead of text.

    import asyncio, firesteel

    best = firesteel.plan("gpt-oss-120b", host_name="gb10")[0]
    print(best.plan.memory.verdict, best.plan.speed)

    async def main() -> None:
        async for event in firesteel.up(firesteel.plan("smollm2")[0]):
            print(event)

Functions that wait for something are async or return a stream of events, whose last one is the result.
Failures are FiresteelErrors: a sentence, and `next`, what to type. Nothing here prints, and what is slow to
load (the HTTP client, the benchmark, the gateway) loads when a function first needs it. `docs/library.md` has
an example of each. The file is long because it has one short function for each thing that a command does, and
nothing to split them by.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from firesteel import reads, rules
from firesteel.catalog import Catalog, Images
from firesteel.edge.files.home import Home, find_home
from firesteel.facts import Host
from firesteel.launch import Ask, EngineName
from firesteel.workspace import Workspace

if TYPE_CHECKING:  # loaded only by those who use them
    import asyncio
    from datetime import datetime

    from firesteel.bench.compare.against import PlanComparison, PublishedComparison
    from firesteel.bench.compare.quality import QualityComparison
    from firesteel.bench.compare.runs import Comparison
    from firesteel.bench.load.measure import Event as BenchEvent
    from firesteel.bench.load.schedule import RunLimits
    from firesteel.bench.load.shapes import Sizes
    from firesteel.bench.results.history import History
    from firesteel.bench.results.serialize import StoredRun
    from firesteel.bench.tune.events import Event as TuneEvent
    from firesteel.bench.tune.journal import TuneOptions
    from firesteel.bench.values import RequestSettings
    from firesteel.catalog.image import InspectedImage
    from firesteel.edge.native.build import BuildProgress
    from firesteel.engines import Diagnosis
    from firesteel.engines.schema.symbols import Schema
    from firesteel.gateway.admin.usage import UsageReport
    from firesteel.gateway.client_target import ClientTarget
    from firesteel.gateway.key_file import Key
    from firesteel.gateway.rate_limits import KeyLimits
    from firesteel.gateway.serve import ServeEvent, ServeOptions
    from firesteel.hosts.cluster.rendered import NodeFile
    from firesteel.hosts.doctor.examine import Examination
    from firesteel.hosts.doctor.nodes import ClusterExamination
    from firesteel.images.built import BuiltImage
    from firesteel.images.report import ImageReport
    from firesteel.proposals import Proposal
    from firesteel.proposals.choose import Choice, Use
    from firesteel.proposals.guides import GuideClaim
    from firesteel.reads import ReadLaunch
    from firesteel.render import Cluster
    from firesteel.rules import CompatibilityTable, Finding
    from firesteel.run.events import Event
    from firesteel.run.fetch.prune import UnusedFile
    from firesteel.run.service import Service
    from firesteel.run.start.options import RunOptions
    from firesteel.run.verify.expected import Task
    from firesteel.run.verify.target import VerifyTarget
    from firesteel.run.verify.verify import Verification
    from firesteel.upgrade.result import UpgradeOptions
    from firesteel.upgrade.upgrade import UpgradeEvent
    from firesteel.workshop.audit import AuditReport
    from firesteel.workshop.quantize.plan import QuantizationPlan
    from firesteel.workshop.quantize.results import QuantizationResult
    from firesteel.workshop.repair import RepairOptions, RepairReport


# --- this machine and what is known ---


def home() -> Home:
    """Where firesteel keeps what it writes: FIRESTEEL_HOME, or the user's data folder."""
    return find_home()


def workspace() -> Workspace:
    """Everything known about this machine and its user."""
    return Workspace(home())


def catalog() -> Catalog:
    """The shipped catalog, with the user's own folder over it."""
    return workspace().catalog


def host(name: str | None = None) -> Host:
    """This machine, measured; or one from the hardware data (`gb10`), at rest."""
    return workspace().host(name)


def images(text: str | None = None) -> Images:
    """Known images, with those that `learn` added: all of them, or those that a text may name."""
    return workspace().images(text)


def compatibility(table: str = "sm121") -> CompatibilityTable:
    """What works on a machine, release by release, according to the rules."""
    return rules.compatibility(table)


def doctor(
    checks: Iterable[str] = (), *, root: Path | None = None, source: Path | None = None
) -> Examination:
    """What is wrong with this host, with a folder that stands for one, or with one in a bundle."""
    from firesteel.hosts.doctor.examine import examine, examine_file

    return examine_file(source, checks) if source else examine(home(), root=root, only=checks)


async def doctor_cluster(checks: Sequence[str] = ()) -> ClusterExamination:
    """The same of this host and every node of the cluster, and what differs between them."""
    from firesteel.hosts.doctor.nodes import examine_cluster  # ssh

    return await examine_cluster(home(), checks)


async def learn(engine: EngineName, version: str, *, again: bool = False) -> Schema:
    """The flags of an engine's release; an unknown release is downloaded, read and stored."""
    from firesteel.edge.files import learned_engines  # loads the readers of engines' sources

    version = learned_engines.release_name(engine, version)
    known = None if again else learned_engines.known_release(home(), engine, version)
    if known:
        return known
    schema = await learned_engines.learn(engine, version, home().learned)
    learned_engines.save_schema(home(), schema)
    return schema


def learn_image(reference: str, *, again: bool = False) -> InspectedImage:
    """The engine in an image on this machine, with its flags; an unknown image is read and stored."""
    from datetime import date

    from firesteel.edge.docker import image_sources
    from firesteel.edge.files import learned_engines  # loads the readers of engines' sources

    runtime = image_sources.find_container_runtime()
    container = image_sources.inspect(runtime, reference)
    known = None if again else learned_engines.known_image(home(), container)
    if known:
        return known
    image = learned_engines.learn_image(runtime, container, date.today(), "")
    learned_engines.save_learned_image(home(), image)
    return image


# --- plans ---


def models(host_name: str | None = None) -> tuple[Proposal, ...]:
    """Every recipe, planned for a host, best first."""
    return propose(Ask(), host(host_name))


def plan(
    model: str,
    *,
    host_name: str | None = None,
    context: int | None = None,
    users: int | None = None,
    port: int | None = None,
) -> tuple[Proposal, ...]:
    """The ways to serve a model, best first: a catalog name, a Hub id, a GGUF file, a folder."""
    return propose(Ask(model=model, context=context, users=users, port=port), host(host_name))


def propose(ask: Ask, on: Host) -> tuple[Proposal, ...]:
    """The ways to serve what was asked for on a host, best first."""
    return workspace().propose(ask, on)


def choose(use: Use, on: Host) -> Choice:
    """The recipe for a use, with two alternatives and why."""
    return workspace().choose(use, on)


def guide_claims(on: Host) -> tuple[GuideClaim, ...]:
    """What known guides claim, held against plans."""
    from firesteel.proposals import guides  # only `choose --guides` needs it

    return guides.guide_claims(catalog(), on)


def render_as(
    proposals: Proposal | Sequence[Proposal],
    form: str = "docker",
    *,
    listen: str | None = None,
    cluster: Cluster | None = None,
) -> str:
    """The launch as text: docker, compose, systemd, quadlet, sparkrun, kubernetes or kubernetes-swap.

    Kubernetes and compose take several proposals. `listen`: an address other than loopback, with a key.
    """
    from firesteel.proposals.rendered import render_proposals  # every form, and only here
    from firesteel.run.start.listen import listening

    chosen = list(proposals) if isinstance(proposals, Sequence) else [proposals]
    if form != "sparkrun":  # it mounts folders of its own
        chosen = [_with_folders(proposal) for proposal in chosen]
    if listen:
        chosen = [listening(proposal, listen) for proposal in chosen]
    return render_proposals(chosen, form, catalog().images, cluster)


async def render_by_node(
    proposal: Proposal, form: str = "docker", *, listen: str | None = None
) -> tuple[NodeFile, ...]:
    """A launch over several hosts as a file for each: docker, compose, systemd or quadlet.

    With the addresses of the nodes that `cluster add` knows, where there are enough; else the usual ones.
    """
    from firesteel.hosts.cluster import rendered
    from firesteel.hosts.cluster.up import rank_hosts_for  # ssh
    from firesteel.run.start.listen import listening

    hosts = await rank_hosts_for(home(), proposal.plan.launch.sparks)
    chosen = _with_folders(proposal)
    chosen = listening(chosen, listen) if listen else chosen
    program, rpc = proposal.plan.launch.program, ""
    if program and proposal.plan.launch.engine == "llamacpp":
        from firesteel.hosts.cluster.rpc import find_rpc_program

        found = find_rpc_program(program)
        rpc = f"{found.node_folder}/{found.path.name}"
    return rendered.render_by_node(chosen, hosts, form, catalog().images, rpc)


def render_for_kubernetes(proposal: Proposal, cluster: Cluster | None = None) -> str:
    """A launch over several hosts as a LeaderWorkerSet."""
    from firesteel.hosts.cluster import rendered

    hosts, chosen = rendered.usual_hosts(proposal.plan.launch.sparks), _with_folders(proposal)
    return rendered.render_for_kubernetes(chosen, hosts, catalog().images, cluster)


def _with_folders(proposal: Proposal) -> Proposal:
    """With the folders of this user, as `up` would mount them."""
    from firesteel.edge.hub.cache import find_store
    from firesteel.run.start.caches import with_user_folders
    from firesteel.run.start.steps import with_native_launch

    if proposal.plan.launch.program:
        return with_native_launch(proposal, home())
    return with_user_folders(proposal, home(), find_store(home()).root, Path.home())


def docker(proposal: Proposal) -> str:
    """The proposal's launch as a `docker run` command to paste, without comments."""
    from firesteel import render  # every form, and only here

    return render.docker(proposal.plan.launch)


# --- texts of others ---


def read(text: str, path: str = "text") -> tuple[ReadLaunch, ...]:
    """The launches in a `docker run` line or any text that has some."""
    return reads.read(text, path, images(text))


def check(text: str, *, path: str = "text", hardware_name: str | None = "stated") -> tuple[Finding, ...]:
    """What the rules say of every launch in a text: on the machine that it speaks of, on `gb10`, or (None)
    without what depends on the machine."""
    found = rules.lint(text, path, rules.LintOptions(images(text), hardware_name))
    if not found.readings:
        raise found.problem or reads.no_launch_error(path)
    return found.findings


def audit(model: str, *, deep: bool = False) -> AuditReport:
    """What is wrong with a checkpoint: a folder, a GGUF file or a Hub id."""
    from firesteel.workshop import audit as workshop  # reads checkpoints, which most callers do not

    return workshop.audit(model, deep=deep)


def repair(model: str, options: RepairOptions) -> RepairReport:
    """A checkpoint mended as far as the options say; written only where they say so."""
    from firesteel.workshop import repair as workshop

    return workshop.repair(model, options)


def undo_repair(model: str) -> tuple[str, ...]:
    """Undo a repair in place; returns the files that are again as they were."""
    from firesteel.workshop import repair as workshop

    return workshop.undo_repair(model)


def inspect_image(
    reference: str, *, deep: bool = False, remote: bool = False, platform: str | None = None
) -> ImageReport:
    """What is inside an image; kept by digest for `check`, `plan` and `up`."""
    from firesteel.images import inspect
    from firesteel.images.sources import open_image

    opened = open_image(reference, platform=platform, deep=deep, remote=remote)
    report = inspect.inspect_image(opened, home().root / "tmp")
    inspect.save_inspection(home(), report)
    return report


def build_image(recipe: str) -> AsyncIterator[BuildProgress | BuiltImage]:
    """Builds, inspects, starts, verifies and tags an image. The last event is `BuiltImage`."""
    from firesteel.edge.files.image_recipes import load_image_recipe
    from firesteel.images import build

    return build.build_image(home(), *load_image_recipe(recipe))


def diagnose(log: Path | str, engine: EngineName | None = None) -> Diagnosis:
    """Why an engine did not start, from its log: a file, or its text."""
    from firesteel import engines  # the patterns of logs load with the first diagnosis

    if isinstance(log, str):
        return engines.diagnose(log, engine)
    from firesteel.edge.files.log_files import open_log

    with open_log(log, str(log)) as text:
        return engines.diagnose(text, engine)


# --- services ---


def pull(
    model: str,
    patterns: tuple[str, ...] = (),
    *,
    weights_only: bool = False,
    update: bool = False,
    reread: bool = False,
) -> AsyncIterator[Event]:
    """Downloads what a model needs to start offline; a `PhaseDone` for each thing that was not there."""
    from firesteel.run.fetch.pull_model import pull_model  # loads the Hub's client

    return pull_model(workspace(), model, patterns, weights_only=weights_only, update=update, reread=reread)


def unused_files(model: str | None = None) -> tuple[UnusedFile, ...]:
    """Files that nothing uses any more; with a model, its weights too. `remove_files` removes them."""
    from firesteel.run.fetch.prune import find_unused
    from firesteel.run.fetch.pull_model import repositories_of  # loads the Hub's client

    here = workspace()
    repositories = repositories_of(here, model) if model else ()
    return find_unused(here.home, here.catalog, here.host(), repositories)


def remove_files(files: Iterable[UnusedFile]) -> tuple[UnusedFile, ...]:
    """Removes them, and returns those that could not be removed because they belong to another user."""
    from firesteel.run.fetch.prune import remove_unused

    return remove_unused(files)


def up(proposal: Proposal, options: RunOptions | None = None) -> AsyncIterator[Event]:
    """Launches and verifies it. The last event is `ServiceReady`, with the report."""
    from firesteel.run.start.options import RunOptions
    from firesteel.run.up import bring_up

    return bring_up(proposal, home(), options or RunOptions())


def down(service: Service) -> AsyncIterator[Event]:
    from firesteel.run.down import stop

    return stop(service)


def services() -> list[Service]:
    """What runs. A container whose supervisor was killed gets another one first."""
    from firesteel.run.service import all_services
    from firesteel.run.start.start import adopt_all

    adopt_all(home())
    return all_services(home())


async def verify(
    name: str | None = None, *, url: str | None = None, model: str | None = None, key: str | None = None
) -> AsyncGenerator[str | Verification]:
    """Asks questions with known answers; the last item is the `Verification`.

    Of a service (without a name, the only one), or of any OpenAI endpoint at `url`.
    """
    target = await verify_target(name, url=url, model=model, key=key)
    async for event in target.verify():
        yield event


async def verify_target(
    name: str | None = None, *, url: str | None = None, model: str | None = None, key: str | None = None,
    task: Task = "chat", takes: tuple[str, ...] = (),
) -> VerifyTarget:  # fmt: skip
    """What `verify` asks. Of an endpoint: what the server does, and what it takes beside text."""
    from firesteel.run.endpoints import base_url, running_service
    from firesteel.run.verify import target  # loads the HTTP client

    if url:
        return await target.target_at_url(base_url(url), model, key, task=task, takes=takes)
    return await target.target_of_service(home(), running_service(home(), name))


def log_file(name: str | None = None) -> Path:
    """The log of a service's engine; without a name, the one that was written to last."""
    from firesteel.run.logs import find_log

    return find_log(home(), name)


def logs(name: str | None = None, lines: int = 50) -> list[str]:
    """The last lines of a log."""
    from firesteel.run.service import last_lines

    return last_lines(log_file(name), lines)


def client_target(
    model: str | None = None, *, context: int | None = None, direct: bool = False
) -> ClientTarget:
    """The endpoint that a client should use, with its limits and abilities: the gateway's unless `direct`."""
    from firesteel.gateway.address import read_address
    from firesteel.gateway.client_target import find_target

    return find_target(workspace(), services(), None if direct else read_address(home()), model, context)


def client_settings(client: str, target: ClientTarget) -> str:
    """The configuration that points a client (`opencode`, `codex`, ...) at a target, as the client's file."""
    from firesteel.render import clients

    settings = clients.settings(client, target.endpoint)
    return clients.render_settings(settings, clients.load_client(client).format)


def upgrade_model(model: str | None, options: UpgradeOptions) -> AsyncIterator[UpgradeEvent]:
    """Tries another release of its engine under a running model; the last event is `UpgradeResult`."""
    from firesteel.upgrade import upgrade as upgrades  # the client that measures

    return upgrades.upgrade(home(), model, options)


def roll_back_model(model: str | None) -> AsyncIterator[UpgradeEvent]:
    """Back to the release before the last upgrade; the last event is `UpgradeResult`."""
    from firesteel.upgrade import upgrade as upgrades

    return upgrades.rollback(home(), model)


# --- the gateway ---


def serve(options: ServeOptions, ends: asyncio.Event) -> AsyncIterator[ServeEvent]:
    """Serves the models of a service file at one URL, until `ends` is set."""
    from firesteel.gateway.serve import serve_file  # the HTTP server

    return serve_file(options, home(), ends)


def keys() -> tuple[Key, ...]:
    """The gateway's keys, without their tokens."""
    from firesteel.gateway.key_file import keys_path, read_keys

    return tuple(read_keys(keys_path(home())).values())


def add_key(
    name: str,
    *,
    scope: Literal["inference", "admin", "metrics"] = "inference",
    models: tuple[str, ...] | None = None,
    limits: KeyLimits | None = None,
    priority: int = 0,
    expires: datetime | None = None,
) -> tuple[Key, str]:
    """The key and its token, which is stored nowhere."""
    from firesteel.gateway import key_file
    from firesteel.gateway.rate_limits import NO_LIMITS

    path, limits = key_file.keys_path(home()), limits or NO_LIMITS
    return key_file.add_key(
        path, name, scope=scope, models=models, limits=limits, priority=priority, expires=expires
    )


def revoke_key(name: str) -> Key:
    """A running gateway refuses it within seconds."""
    from firesteel.gateway import key_file

    return key_file.revoke_key(key_file.keys_path(home()), name)


def usage(
    since: str | None = None,
    until: str | None = None,
    *,
    key: str | None = None,
    model: str | None = None,
    by: Iterable[str] = ("day", "key", "model"),
) -> UsageReport:
    """Requests and tokens by day, key and model, and what is left of the budgets; the last 30 days."""
    from firesteel.gateway.admin import usage as reports

    options = {"since": since, "until": until, "key": key, "model": model, "by": ",".join(by)}
    return reports.read_report(home(), reports.parse_query(options), time.time())


# --- measurements ---


async def measure(
    name: str | None = None,
    *,
    url: str | None = None,
    model: str | None = None,
    key: str | None = None,
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    settings: RequestSettings | None = None,
    limits: RunLimits | None = None,
    resume: str | None = None,
    prompts: str | Path | None = None,
    find: bool = False,
) -> AsyncGenerator[BenchEvent]:
    """Measures a service or any OpenAI endpoint; the last event is `RunFinished`, and the run is stored.

    `resume`: an interrupted run to continue; it keeps its points and settings. `prompts`: a file with prompts
    of one's own. `find`: search for the highest load that holds `settings.target`, instead of `shapes`.
    """
    from firesteel.bench.load import own_prompts, recorded  # the client that measures

    own = own_prompts.read_prompts(Path(prompts)) if prompts else None
    server = await recorded.find_server(home(), name, url, model, key)
    with history() as runs:
        if resume:
            budget_s, precision = (limits.budget_s, limits.precision) if limits else (None, None)
            order = recorded.resume_order(runs, resume, server, budget_s, precision, own)
        elif find:
            order = recorded.search_order(server, sizes, settings, limits, own)
        else:
            order = recorded.make_order(server, shapes, sizes, settings, limits, own=own)
        async for event in recorded.measure_recorded(order, runs, home()):
            yield event


def history() -> AbstractContextManager[History]:
    """The measured runs: `with firesteel.history() as history: history.runs()`."""
    from firesteel.bench.results.history import open_history  # SQLite

    return open_history(home())


def stored_run(name: str = "last") -> StoredRun:
    """A run of the history by its id, `last` or `last~1`; or one from a file, also of another tool."""
    from firesteel.bench.results.result_files import find_run

    with history() as runs:
        return find_run(runs, name)


def compare(first: str, second: str, *, despite: Iterable[str] = ()) -> Comparison:
    """The second run against the first: which differences are more than chance."""
    from firesteel.bench.compare import runs

    one, other = stored_run(first), stored_run(second)
    with history() as known:
        earlier = known.runs_of(one.run.subject.launch_key, other.run.subject.launch_key)
    is_interleaved = runs.were_interleaved(one, other)
    return runs.compare(one, other, despite=tuple(despite), is_interleaved=is_interleaved, earlier=earlier)


async def compare_in_turns(
    first: str,
    second: str,
    *,
    model: str | None = None,
    key: str | None = None,
    shapes: Iterable[str] = ("quick",),
    sizes: Sizes | None = None,
    limits: RunLimits | None = None,
) -> AsyncGenerator[BenchEvent | Comparison]:
    """Measures two servers (URLs or running services) in turns; the last event is the `Comparison`."""
    from firesteel.bench.compare import ab, runs  # the client that measures
    from firesteel.bench.load.measure import RunFinished
    from firesteel.bench.results.serialize import StoredRun

    done: dict[int, StoredRun] = {}
    servers = await ab.find_servers(home(), (first, second), model, key)
    with history() as known:
        async for side, event in ab.measure_in_turns(known, servers, shapes, sizes, limits):
            if isinstance(event, RunFinished):
                done[side] = StoredRun(event.run, event.samples)
            yield event
    yield runs.compare(done[0], done[1], is_interleaved=True)


async def compare_answers(
    first: str, second: str, *, model: str | None = None, key: str | None = None, budget_s: float = 240.0
) -> QualityComparison:
    """Two URLs or running services, asked the same at temperature 0: how their answers differ."""
    from firesteel.bench.compare import quality
    from firesteel.bench.compare.ab import find_servers

    servers = await find_servers(home(), (first, second), model, key)
    pairs = [pair async for pair in quality.ask_both(servers, budget_s)]
    return quality.compare_quality((first, second), pairs)


def compare_with_plan(name: str = "last") -> tuple[PlanComparison, ...]:
    """A run against what was planned for its service."""
    from firesteel.bench.compare.against import against_plan

    return against_plan(stored_run(name).run)


def compare_with_published(name: str = "last") -> tuple[PublishedComparison, ...]:
    """A run against the published runs of the same checkpoint and engine."""
    from firesteel.bench.compare.against import all_published

    return all_published(stored_run(name).run)


async def tune(
    model: str,
    options: TuneOptions | None = None,
    *,
    context: int | None = None,
    port: int | None = None,
    resume: bool = False,
) -> AsyncGenerator[TuneEvent]:
    """Searches for better settings of a model by measured runs; the last event is `TuneResult`.

    A model that runs is stopped meanwhile and runs again at the end. `resume`: continue an interrupted one.
    """
    from firesteel.bench.tune import begin, journal
    from firesteel.bench.tune import tune as search

    options = options or journal.TuneOptions()
    ask = Ask(model, context, options.users, port)
    entry = (begin.resume if resume else begin.begin)(home(), ask, options, services())
    with history() as runs:
        async for event in search.tune(entry, begin.environment(home(), runs)):
            yield event


# --- the workshop ---


def plan_quantization(model: str, to: str, *, keep: Sequence[str] = ()) -> QuantizationPlan:
    """What quantizing a checkpoint would write, to the byte, from its headers."""
    from firesteel.workshop.quantize.plan import plan_quantization
    from firesteel.workshop.quantize.source import open_source

    return plan_quantization(open_source(model), to, keep)


def quantize(plan: QuantizationPlan, out: Path, *, threads: int | None = None) -> QuantizationResult:
    """Write a quantized checkpoint; a run that was killed goes on."""
    import os

    from firesteel.workshop.kernels.native import load_kernel
    from firesteel.workshop.quantize.run import run_quantization

    kernel = load_kernel(home().root / "kernels")
    return run_quantization(plan, out.absolute(), kernel, threads or len(os.sched_getaffinity(0)))
