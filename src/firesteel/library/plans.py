"""What fits a host, and how fast: plans, the list of models, the choice for a use, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.catalog.catalog import Catalog
from firesteel.edge.home import find_home
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.host.hardware import Host
from firesteel.launch import Ask, EngineName, Goal, Matter, Who
from firesteel.values import Value, replace
from firesteel.workspace import find_workspace

if TYPE_CHECKING:  # `check` and the shell's completion load no planner
    from firesteel.library.services import ServiceStatus
    from firesteel.planner.advice import OverHosts
    from firesteel.planner.choose import Choice, GuideClaim, Use
    from firesteel.planner.propose import Proposal


def catalog() -> Catalog:
    """The shipped catalog, with the user's own folder over it."""
    return find_workspace().catalog


def host(name: str | None = None) -> Host:
    """This machine, measured; or one from the hardware data (`gb10`), at rest."""
    return find_workspace().host(name)


# --- one model ---


class PlannedModel(Value):
    """The ways to serve a model, and what several hosts gain."""

    ask: Ask
    best: Proposal
    others: tuple[Proposal, ...] = ()
    over_hosts: OverHosts | None = None
    """For a model over several hosts: compared with one host and with replicas."""


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
    return find_workspace().propose(ask, on)


def plan_model(ask: Ask, host_name: str | None = None, *, on_all_nodes: bool = False) -> PlannedModel:
    """Plan a model, with what several hosts gain; `on_all_nodes`: this host and the nodes of its cluster."""
    ask, on = _on(ask, host_name, on_all_nodes)
    best, *others = propose(ask, on)
    if best.plan.launch.sparks == 1:
        return PlannedModel(ask, best, tuple(others))
    from firesteel.planner.advice import over_hosts

    alone = propose(replace(ask, model=_same_recipe(ask, best), sparks=1), best.plan.host)
    return PlannedModel(ask, best, tuple(others), over_hosts(best, alone[0]))


def plan_side_by_side(
    models: Sequence[str], ask: Ask, host_name: str | None = None, *, on_all_nodes: bool = False
) -> tuple[Proposal, ...]:
    """The best way to serve each of them."""
    ask, on = _on(ask, host_name, on_all_nodes)
    return tuple(propose(replace(ask, model=model), on)[0] for model in models)


def exit_code_of(proposals: Sequence[Proposal]) -> int:
    """The exit code of the first one that can run."""
    return min(proposal.exit_code for proposal in proposals)


def write_chart(proposal: Proposal, path: Path) -> None:
    """What fills the memory, and the speed against the bandwidth limit, as SVG."""
    from firesteel.edge import files
    from firesteel.planner.chart import draw_plan  # only now is a renderer needed

    files.write_new(path, draw_plan(proposal))


def compared_with_best(best: Proposal, other: Proposal) -> str:
    """Why the other way is not the best one, in a few words."""
    from firesteel.planner import propose

    return propose.compared_with_best(best, other)


def require_splittable(hosts: int | None) -> None:
    if hosts and hosts & (hosts - 1):
        raise UsageError(
            f"attention heads cannot be split over {hosts} Sparks; 1, 2, 4 and 8 can be planned",
            next="--nodes 2",
        )


def _on(ask: Ask, host_name: str | None, on_all_nodes: bool) -> tuple[Ask, Host]:
    if not on_all_nodes:
        require_splittable(ask.sparks)
        return ask, host(host_name)
    from firesteel.hosts.cluster.nodes import require_nodes  # only a cluster has nodes

    hosts = ask.sparks or len(require_nodes(find_home())) + 1
    require_splittable(hosts)
    return replace(ask, sparks=hosts), replace(host(host_name), joined_hosts=hosts)


def _same_recipe(ask: Ask, best: Proposal) -> str | None:
    """The recipe's own name: several recipes may have the model's."""
    return best.recipe.name if best.recipe else ask.model


# --- what to type next ---


def next_command(planned: PlannedModel) -> str:
    """What to type after a plan: to serve it, to learn why it cannot run, or what would fit."""
    ask, best = planned.ask, planned.best
    return _to_serve(ask, best) if best.plan.fits else _to_fit(ask, best)


def _to_serve(ask: Ask, best: Proposal) -> str:
    from firesteel.planner.advice import has_weights
    from firesteel.planner.propose import is_audit

    if best.stops and (is_audit(best.stops[0]) or best.stops[0].key.startswith("adapter:")):
        return best.stops[0].instead or f"firesteel audit {shlex.join(_model_words(ask, best))}"
    if not has_weights(best):
        return "firesteel up with the folder that holds its weights, or with its Hub id"
    served = shlex.join((*_model_words(ask, best), *_as_words(_launch_options(ask))))
    hosts = best.plan.launch.sparks
    joined, split = (" --cluster", f" --nodes {hosts}") if hosts > 1 else ("", "")
    if best.plan.host.name != "local":
        rendered = f"firesteel render {served}{split} prints its docker run"
        return f"firesteel up {served}{joined}, on that machine; {rendered}"
    if best.can_run:
        return f"firesteel up {served}{joined}"
    if best.stops:
        return f"firesteel check --explain {best.stops[0].rule}"
    return f"{_plan_again(ask, best, 'gb10')}, for a Spark; firesteel models, for what fits here"


def _to_fit(ask: Ask, best: Proposal) -> str:
    """What to type so that it fits: a smaller context, fewer services, two Sparks, or another recipe."""
    from firesteel.planner.advice import alternative, how_to_fit
    from firesteel.run.preflight import held_bytes  # loads docker

    host_name = best.plan.host.name
    hint = how_to_fit(best, held_bytes(find_home()) if host_name == "local" else {})
    if hint.startswith("--context "):
        return _plan_again(replace(ask, context=int(hint.removeprefix("--context "))), best, host_name)
    if not hint.startswith("firesteel models"):
        return hint
    if best.plan.host.hardware == "gb10" and best.plan.launch.sparks == 1 and _fits_two(ask, best):
        return f"{_plan_again(replace(ask, sparks=2), best, host_name)}, which fits"
    other = alternative(best, propose(Ask(), best.plan.host))
    return f"firesteel plan {other.name}, which fits" if other else hint


def _plan_again(ask: Ask, best: Proposal, host_name: str) -> str:
    """The plan that was asked for, as it is typed."""
    options = _launch_options(ask) | {
        "quant": ask.quant, "weights-bytes": ask.weights_bytes, "kv-cache-dtype": ask.kv_cache_dtype,
        "kv-cache-memory-bytes": ask.kv_cache_bytes, "host": None if host_name == "local" else host_name,
        "nodes": ask.sparks,
    }  # fmt: skip
    return shlex.join(("firesteel", "plan", *_model_words(ask, best), *_as_words(options)))


def _model_words(ask: Ask, best: Proposal) -> list[str]:
    """The model and its adapters, as they are typed."""
    adapters = (("--adapter", f"{each.name}={each.reference}") for each in ask.adapters)
    return [ask.model or best.name, *(word for pair in adapters for word in pair)]


def _launch_options(ask: Ask) -> dict[str, object]:
    """What was asked for besides the model that `plan`, `up` and `render` all take."""
    return {
        "context": ask.context, "users": ask.users, "port": ask.port, "engine": ask.engine,
        "engine-version": ask.version, "engine-path": ask.engine_path, "despite": ask.despite,
        "native": ask.runtime == "native" and not ask.engine_path,
    }  # fmt: skip


def _as_words(options: Mapping[str, object]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        for each in value if isinstance(value, tuple) else (value,) if value else ():
            words += [f"--{name}"] if each is True else [f"--{name}", str(each)]
    return words


def _fits_two(ask: Ask, best: Proposal) -> bool:
    try:
        found = propose(replace(ask, model=_same_recipe(ask, best), sparks=2), best.plan.host)
    except FiresteelError:  # it cannot be split
        return False
    return found[0].plan.fits


# --- the catalog ---


class ModelList(Value):
    """Recipes of the catalog, planned for a host, best first."""

    host: Host
    proposals: tuple[Proposal, ...]


def models(host_name: str | None = None) -> tuple[Proposal, ...]:
    """Every recipe, planned for a host, best first."""
    return propose(Ask(), host(host_name))


def find_models(
    text: str | None = None,
    *,
    host_name: str | None = None,
    fits: bool = False,
    engine: EngineName | None = None,
    modality: str | None = None,
    license: str | None = None,
    goal: Goal | None = None,
    context: int | None = None,
    users: int | None = None,
) -> ModelList:
    """Those that match; `text` is a part of a name, `license` of the name of a licence."""
    on = host(host_name)
    found = tuple(
        proposal
        for proposal in propose(Ask(context=context, users=users, engine=engine, goal=goal), on)
        if (proposal.can_run or not fits) and _matches(proposal, text, modality, license)
    )
    if not found:
        raise UsageError("no model in the catalog matches", next="firesteel models")
    return ModelList(on, found)


def _matches(proposal: Proposal, text: str | None, modality: str | None, license: str | None) -> bool:
    model = proposal.model
    assert model is not None, "everything in the catalog has a model"
    names = f"{proposal.name} {model.id} {model.title} {model.family}".lower()
    return (
        (text is None or text.lower() in names)
        and (modality is None or modality.lower() in model.modality)
        and (license is None or license.lower() in model.license.lower())
    )


# --- a use ---


def choose(use: Use, on: Host) -> Choice:
    """The recipe for a use, with two alternatives and why."""
    return find_workspace().choose(use, on)


def choose_for(
    who: Who,
    prompt_tokens: int,
    matters: Matter,
    *,
    users: int | None = None,
    takes: str | None = None,
    host_name: str | None = None,
) -> Choice:
    """The recipe for a use: who uses it, how long prompts are, what matters. `takes`: besides text."""
    from firesteel.planner.choose import Use

    return choose(Use(who, prompt_tokens, matters, users, takes), host(host_name))


def guide_claims(on: Host) -> tuple[GuideClaim, ...]:
    """What known guides claim, compared with plans."""
    from firesteel.planner import choose as uses

    return uses.guide_claims(catalog(), on)


# --- this host ---


class Overview(Value):
    """This host, what fits it, what runs, and what to type next."""

    host: Host
    fitting: tuple[Proposal, ...]
    """Recipes that can run here, best first."""
    running: tuple[ServiceStatus, ...]
    next: str


def overview() -> Overview:
    from firesteel.library import run
    from firesteel.library.services import service_status

    on = host()
    fitting = tuple(proposal for proposal in propose(Ask(), on) if proposal.can_run)
    running = tuple(map(service_status, run.services()))
    return Overview(on, fitting, running, _first_command(fitting, running, has_gpu=bool(on.gpus)))


def _first_command(fitting: Sequence[Proposal], running: Sequence[ServiceStatus], *, has_gpu: bool) -> str:
    ready = [service for service in running if service.phase == "ready"]
    if ready:
        return f"firesteel verify {ready[0].name}"
    if running:
        return "firesteel ps"
    if not fitting:
        return "firesteel models"
    return f"firesteel up {fitting[0].name}" if has_gpu else "firesteel up"


def gpu_bandwidth(name: str) -> float | None:
    """Bytes a second, as reported of a discrete GPU."""
    from firesteel.facts.host.gpus import discrete_gpu

    known = discrete_gpu(name)
    return known.bandwidth if known else None
