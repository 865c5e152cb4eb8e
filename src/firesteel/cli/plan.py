"""`firesteel plan MODEL`"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from firesteel.cli.options import common, complete
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import compare_view, out, plan_view
from firesteel.edge.files import text_files
from firesteel.edge.files.home import find_home
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import Ask, EngineName, Goal
from firesteel.library import documents, plans
from firesteel.proposals import Proposal, alternative, has_weights, how_to_fit
from firesteel.proposals.over_hosts import PUBLISHED, OverHosts, over_hosts
from firesteel.rules.checkpoint_checks.launch_findings import is_audit
from firesteel.workspace import Workspace, find_workspace


@click.command("plan")
@click.argument("models", metavar="MODEL", nargs=-1, required=True, shell_complete=complete.recipes)
@click.option("--compare", is_flag=True, help="Show two or more MODELs side by side.")
@click.option("--goal", type=click.Choice(get_args(Goal)), help="Choose the recipe by this.")
@click.option("--chart", metavar="FILE.svg", type=common.FILE, help="Draw the plan.")
@common.host_option
@common.size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Consider only this engine.")
@click.option("--engine-version", "version", metavar="VERSION", help="Plan for this release of the engine.")
@common.runtime_options
@common.adapter_option
@click.option(
    "--quant", metavar="NAME", help="Say how the weights of a config are stored: nvfp4, fp8, q4_k_m, ..."
)
@click.option(
    "--weights-bytes", type=click.IntRange(1, 2**50), help="Give the size of the weights, if you know it."
)
@click.option("--kv-cache-dtype", metavar="TYPE", help="Store the KV cache so: fp8, auto, q8_0, ...")
@click.option(
    "--kv-cache-memory-bytes",
    "kv_cache_bytes",
    type=click.IntRange(1, 2**50),
    help="Give the KV cache exactly this much.",
)
@click.option(
    "--prompt",
    "prompt_tokens",
    type=common.TOKENS,
    help="Users send prompts of this length (default: the --context).",
)
@click.option(
    "--answer", "answer_tokens", type=common.TOKENS, help="They get answers of this length (default 512)."
)
@click.option("--shared", type=common.TOKENS, help="So much of each prompt is already in the prefix cache.")
@click.option("--nodes", type=click.IntRange(1, 8), help="Split the model over so many Sparks.")
@click.option("--cluster", "is_cluster", is_flag=True, help="Split it over this host and all its nodes.")
@common.json_option
def command(
    models: tuple[str, ...],
    compare: bool,
    chart: Path | None,
    host_name: str | None,
    shared: int | None,
    nodes: int | None,
    is_cluster: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Show whether MODEL fits and how fast it will be, before any download.

    MODEL is a name from `firesteel models`, a Hub id, a GGUF file, a folder with safetensors, or a
    config.json alone, for which --quant says how the weights are stored. Exits 4 when it does not fit, 3
    when a rule stops it.
    """
    if is_cluster:
        from firesteel.hosts.cluster.nodes import require_nodes  # only a cluster has nodes

        nodes = nodes or len(require_nodes(find_home())) + 1
    _check_arguments(models, compare, chart, nodes)
    ask = Ask(models[0], sparks=nodes, shared_tokens=shared or 0, **asked)
    workspace = find_workspace()
    host = workspace.host(host_name)
    if is_cluster:
        host = replace(host, joined_hosts=nodes or 1)
    proposals = [workspace.propose(replace(ask, model=model), host) for model in models]
    if compare:
        return _compare([ways[0] for ways in proposals], as_json)
    best, *others = proposals[0]
    gain = _over_hosts(workspace, ask, best) if best.plan.launch.sparks > 1 else None
    if chart:
        from firesteel.cli.output.plan_chart import picture  # only now is a renderer needed

        text_files.write_new(chart, picture(best))
    if as_json:
        document = documents.proposals.plan_json(best, tuple(others))
        common.print_json(document.model_copy(update={"over_hosts": gain}))
    else:
        out.print(plan_view(best, tuple(others)))
        if gain:
            out.print(f"\n{gain.hosts} hosts    {gain.verdict} ({PUBLISHED})")
        adapters = [word for each in ask.adapters for word in ("--adapter", f"{each.name}={each.reference}")]
        model = shlex.join((models[0], *adapters))
        text = _next(best, model) if best.plan.fits else _what_fits(workspace, ask, best, model)
        out.print(typed(f"\nnext: {text}"), soft_wrap=True)  # a command in two lines would not be one
    return best.exit_code


def _over_hosts(workspace: Workspace, ask: Ask, best: Proposal) -> OverHosts:
    """Against the same recipe on one host."""
    subject = best.recipe.name if best.recipe else ask.model
    alone = workspace.propose(replace(ask, model=subject, sparks=1), best.plan.host)
    return over_hosts(best, alone[0])


def _check_arguments(models: tuple[str, ...], compare: bool, chart: Path | None, nodes: int | None) -> None:
    if compare and (len(models) < 2 or chart):
        raise UsageError(
            "--compare takes two or more MODELs and draws no chart", next="firesteel plan --help"
        )
    if nodes and nodes & (nodes - 1):
        raise UsageError(
            f"attention heads cannot be split over {nodes} Sparks; 1, 2, 4 and 8 can be planned",
            next="--nodes 2",
        )
    if len(models) > 1 and not compare:
        raise UsageError("one MODEL at a time", next=f"firesteel plan --compare {' '.join(models)}")


def _compare(proposals: list[Proposal], as_json: bool) -> int:
    """Exits as the first that can run would."""
    if as_json:
        common.print_json(documents.proposals.plan_compare_json(proposals))
    else:
        out.print(compare_view(proposals))
    return min(proposal.exit_code for proposal in proposals)


def _next(best: Proposal, model: str) -> str:
    if best.stops and (is_audit(best.stops[0]) or best.stops[0].key.startswith("adapter:")):
        return best.stops[0].instead or f"firesteel audit {model}"
    if not has_weights(best):
        return "firesteel up with the folder that holds its weights, or with its Hub id"
    joined = " --cluster" if best.plan.launch.sparks > 1 else ""
    if best.plan.host.name != "local":
        return (
            f"firesteel up {model}{joined}, on that machine; firesteel render {model} prints its docker run"
        )
    if best.can_run:
        return f"firesteel up {model}{joined}"
    if best.stops:
        return f"firesteel check --explain {best.stops[0].rule}"
    return f"firesteel plan {model} --host gb10, for a Spark; firesteel models, for what fits here"


def _what_fits(workspace: Workspace, ask: Ask, best: Proposal, model: str) -> str:
    """The same with a smaller context, beside fewer services, on two Sparks, or another recipe."""
    from firesteel.run.start.preflight import (
        held_bytes,
    )  # loads docker; only needed here

    is_local = best.plan.host.name == "local"
    hint = how_to_fit(best, held_bytes(find_home()) if is_local else {})
    again = shlex.join(_options(ask, best.plan.host.name))
    if hint.startswith("--"):
        return f"firesteel plan {model} {hint} {again}".rstrip()
    if not hint.startswith("firesteel models"):
        return hint
    if best.plan.host.hardware == "gb10" and best.plan.launch.sparks == 1 and _fits_two(workspace, ask, best):
        return f"firesteel plan {model} {again} --nodes 2, which fits".replace("  ", " ")
    other = alternative(best, plans.propose(Ask(), best.plan.host))
    return f"firesteel plan {other.name}, which fits" if other else hint


def _options(ask: Ask, host: str) -> list[str]:
    """What was asked for beside the model and its context, as it is typed."""
    asked = {
        "users": ask.users, "engine": ask.engine, "engine-version": ask.version, "quant": ask.quant,
        "weights-bytes": ask.weights_bytes, "kv-cache-dtype": ask.kv_cache_dtype,
        "host": None if host == "local" else host,
    }  # fmt: skip
    return [word for name, value in asked.items() if value for word in (f"--{name}", str(value))]


def _fits_two(workspace: Workspace, ask: Ask, best: Proposal) -> bool:
    subject = best.recipe.name if best.recipe else ask.model
    try:
        return workspace.propose(replace(ask, model=subject, sparks=2), best.plan.host)[0].plan.fits
    except FiresteelError:  # it cannot be split
        return False
