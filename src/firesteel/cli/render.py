"""`firesteel render MODEL --as FORM`"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, get_args

import click

from firesteel import engines, library, render
from firesteel.cli.options import common
from firesteel.edge.files import text_files
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName, Launch
from firesteel.proposals import Proposal
from firesteel.render import Cluster, LaunchFacts
from firesteel.service_file import asks, read_service_file

_FORMS = {
    "docker": render.docker,
    "compose": render.compose,
    "systemd": render.systemd,
    "quadlet": render.quadlet,
    "sparkrun": render.sparkrun,
}
_CLUSTER_FORMS = {"kubernetes": render.kubernetes, "kubernetes-swap": render.swap_script}
_PLANNED = ("kv-cache-memory-bytes", "gpu-memory-utilization")


@click.command("render")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--as",
    "form",
    type=click.Choice([*_FORMS, *_CLUSTER_FORMS]),
    default="docker",
    show_default=True,
    help="Write it for this tool.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file."
)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Render the models of a service file.",
)
@click.option(
    "--listen", metavar="ADDRESS", help="Listen on this address, with a key (default: only 127.0.0.1)."
)
@click.option("--service", metavar="NAME", help="Kubernetes: name the Service.")
@click.option("--tailnet", is_flag=True, help="Kubernetes: publish that name in MagicDNS.")
@common.host_option
@common.size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Use only this engine.")
@click.option(
    "--engine-version", "version", metavar="VERSION", help="Write it for this release of the engine."
)
@click.option(
    "--quant", metavar="NAME", help="Assume this weight format for a config: nvfp4, fp8, q4_k_m, ..."
)
@click.option("--nodes", type=click.IntRange(1, 8), help="Split it over this many Sparks.")
@common.json_option
def command(
    models: tuple[str, ...],
    form: str,
    output: Path | None,
    file: Path | None,
    listen: str | None,
    service: str | None,
    tailnet: bool,
    host_name: str | None,
    as_json: bool,
    **sizes: Any,
) -> int:
    """Write the launch of MODEL as a command to paste, or as a file for another tool.

    Several MODELs make one Kubernetes manifest: one Service, and a Deployment for each model, of which the
    first runs; --as kubernetes-swap writes a script that switches between them. With --file, --as compose
    writes one compose file with a service for each model. Exits 4 if a model does not fit and 3 if a rule
    stops it; the text is written in any case.
    """
    asks_ = _asks(models, file, form, sizes)
    takes_several = form in _CLUSTER_FORMS or (form == "compose" and file)
    if len(asks_) > 1 and not takes_several:
        first = asks_[0].name or asks_[0].model or ""
        raise UsageError(f"--as {form} takes one MODEL", next=_command_line((first,), file, form))
    if form not in _CLUSTER_FORMS and (service or tailnet):
        raise UsageError(
            "--service and --tailnet are for Kubernetes", next=_command_line(models, file, "kubernetes")
        )
    if listen and form in _CLUSTER_FORMS:
        again = f"{_command_line(models, file, form)} --tailnet"
        raise UsageError("--listen is not for Kubernetes; the Service decides who can reach it", next=again)
    host = library.host(host_name or "gb10")
    proposals = [library.propose(ask, host)[0] for ask in asks_]
    text = _text(form, proposals, listen, Cluster(service, tailnet))
    if form == "docker" and not (output or as_json) and sys.stdout.isatty():
        # Without comments: an interactive zsh takes them for commands.
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    if output:
        text_files.write_new(output, text)
    _show(form, proposals, text, output, as_json)
    return max(_exit_code(proposal) for proposal in proposals)


def _asks(models: tuple[str, ...], file: Path | None, form: str, sizes: dict[str, Any]) -> list[Ask]:
    if file:
        hint = "firesteel models, to list models that need no file"
        known = asks(read_service_file(str(file), text_files.read_text(file, next=hint)))
        unknown = [name for name in models if name not in known]
        if unknown or not known:
            missing = f"`{', '.join(unknown)}`" if unknown else "any model"
            raise UsageError(
                f"{file} does not start {missing}",
                next=_command_line((next(iter(known)),), file, form) if known else hint,
            )
        return [known[name] for name in models or known]
    if not models:
        raise UsageError("which MODEL?", next="firesteel models, to list their names")
    nodes = sizes.pop("nodes")
    if nodes and nodes & (nodes - 1):
        raise UsageError(f"attention heads cannot be split over {nodes} Sparks", next="--nodes 2")
    return [Ask(model, **sizes, sparks=nodes) for model in models]


def _command_line(models: tuple[str, ...], file: Path | None, form: str) -> str:
    """A complete command, to type instead of this one."""
    from_file = ("-f", str(file)) if file else ()
    return shlex.join(("firesteel", "render", *models, *from_file, "--as", form))


def _text(form: str, proposals: list[Proposal], listen: str | None, cluster: Cluster) -> str:
    if listen:
        from firesteel.run.start.listen import listening  # only --listen needs `run`, which is slow to load

        proposals = [listening(proposal, listen) for proposal in proposals]
    pairs = [(proposal.plan.launch, launch_facts(proposal)) for proposal in proposals]
    if form in _CLUSTER_FORMS:
        return _CLUSTER_FORMS[form](pairs, cluster)
    if len(pairs) > 1:
        return _compose_all(pairs)
    return _FORMS[form](*pairs[0])


def _compose_all(pairs: list[tuple[Launch, LaunchFacts]]) -> str:
    """Several files merged: each with its own comments above it, under one `services`."""
    key = "services:\n"
    files = [render.compose(*pair).partition(key) for pair in pairs]
    return (
        "# One compose file for all models of a service file.\n"
        + key
        + "".join(f"\n{head}{body}" for head, _, body in files)
    )


def launch_facts(proposal: Proposal) -> LaunchFacts:
    """What the recipe, the plan and the catalog know beyond the launch itself."""
    plan, recipe, model = proposal.plan, proposal.recipe, proposal.model
    start = plan.speed.start_up if plan.speed else None
    image = plan.launch.container.image if plan.launch.container else None
    return LaunchFacts(
        flag_reasons=_flag_reasons(proposal, plan.launch),
        env_reasons={name: setting.why for name, setting in recipe.env.items()} if recipe else {},
        start_up_s=start.seconds.high if start and start.phases else None,
        needed_bytes=round(plan.memory.needed.high),
        weights_bytes=plan.weights.total_bytes,
        digest=render.find_digest(image, library.catalog().images) if image else None,
        revision=model.revision if model else None,
        is_gated=bool(model and model.gated),
    )


def _flag_reasons(proposal: Proposal, launch: Launch) -> dict[str, str]:
    plan, recipe = proposal.plan, proposal.recipe
    reasons = {name: setting.why for name, setting in recipe.flags.items()} if recipe else {}
    context, users = plan.cache.context, plan.cache.users
    for name in engines.size_flags(launch.engine, context, users):
        reasons.setdefault(name, f"{context:,} tokens for each of {users} at once")
    for name in _PLANNED:
        reasons.setdefault(name, f"from the plan for {plan.host.title}")
    return reasons


def _exit_code(proposal: Proposal) -> int:
    if not proposal.plan.fits:
        return 4
    return 3 if proposal.stops else 0


def _show(form: str, proposals: list[Proposal], text: str, output: Path | None, as_json: bool) -> None:
    for proposal in proposals:
        name = proposal.name
        if not proposal.plan.fits:
            click.echo(f"{name} does not fit {proposal.plan.host.title}; see firesteel plan {name}", err=True)
        for finding in proposal.stops:
            click.echo(f"{name}: {finding.rule}: {finding.says}", err=True)
    if as_json:
        from firesteel.cli.output.documents.render import RenderJson

        names = tuple(proposal.name for proposal in proposals)
        path = str(output) if output else None
        common.print_json(RenderJson(name=names[0], names=names, format=form, text=text, path=path))
    elif output:
        click.echo(f"wrote {output}", err=True)
    else:
        click.echo(text, nl=False)
