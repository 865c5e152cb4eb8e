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
from firesteel.render import Cluster, LaunchFacts
from firesteel.rules import Proposal, release
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
    "--as", "form", type=click.Choice([*_FORMS, *_CLUSTER_FORMS]), default="docker", show_default=True
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file."
)
@click.option(
    "-f", "--file", type=click.Path(path_type=Path, dir_okay=False), help="Models of a service file."
)
@click.option("--listen", metavar="ADDRESS", help="Publish here, with a key; without it only 127.0.0.1.")
@click.option("--service", metavar="NAME", help="Kubernetes: what clients call it.")
@click.option("--tailnet", is_flag=True, help="Kubernetes: give it that name in MagicDNS.")
@common.host_option
@common.size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Only ways through this engine.")
@click.option("--engine-version", "version", metavar="VERSION", help="As this release is started.")
@click.option("--quant", metavar="NAME", help="How a config's weights are stored: nvfp4, fp8, q4_k_m, ...")
@click.option("--nodes", type=click.IntRange(1, 8), help="Sparks to split it over.")
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
    """The launch of MODEL as a command to paste, or as a file for another tool.

    Several MODELs make one Kubernetes manifest: one Service, a Deployment each, of which the first runs;
    --as kubernetes-swap writes the script that changes from one to the other. All of a service file make one
    compose file, a service each. Exits 4 when it does not fit,
    3 when a rule stops it; the text is written all the same.
    """
    wanted = _asks(models, file, form, sizes)
    takes_several = form in _CLUSTER_FORMS or (form == "compose" and file)
    if len(wanted) > 1 and not takes_several:
        first = wanted[0].name or wanted[0].model or ""
        raise UsageError(f"--as {form} shows one MODEL at a time", next=_typed_again((first,), file, form))
    if form not in _CLUSTER_FORMS and (service or tailnet):
        again = _typed_again(models, file, "kubernetes")
        raise UsageError("--service and --tailnet are words of Kubernetes", next=again)
    if listen and form in _CLUSTER_FORMS:
        again = f"{_typed_again(models, file, form)} --tailnet"
        raise UsageError("in a cluster the Service says who can reach it", next=again)
    ways = [_best(ask, host_name) for ask in wanted]
    text = _text(form, ways, listen, Cluster(service, tailnet))
    if form == "docker" and not (output or as_json) and sys.stdout.isatty():
        text = _to_paste(text)
    if output:
        text_files.write_new(output, text)
    _show(form, ways, text, output, as_json)
    return max(_objection(way) for way in ways)


def _asks(models: tuple[str, ...], file: Path | None, form: str, sizes: dict[str, Any]) -> list[Ask]:
    if file:
        missing = "firesteel models, for what needs no file"
        known = asks(read_service_file(str(file), text_files.read_text(file, next=missing)))
        unknown = [name for name in models if name not in known]
        if unknown or not known:
            raise UsageError(
                f"{file} starts no `{', '.join(unknown) or 'model'}`",
                next=_typed_again((next(iter(known)),), file, form) if known else missing,
            )
        return [known[name] for name in models or known]
    if not models:
        raise UsageError("which MODEL?", next="firesteel models, for their names")
    engine, version = sizes["engine"], sizes.pop("version")
    nodes = sizes.pop("nodes")
    if nodes and nodes & (nodes - 1):
        raise UsageError(f"attention heads are not split in {nodes}", next="--nodes 2")
    told = release(engine, version) if version else None
    return [Ask(model, **sizes, version=told, sparks=nodes) for model in models]


def _typed_again(models: tuple[str, ...], file: Path | None, form: str) -> str:
    """A whole command, to type in place of this one."""
    from_file = ("-f", str(file)) if file else ()
    return shlex.join(("firesteel", "render", *models, *from_file, "--as", form))


def _best(ask: Ask, host_name: str | None) -> Proposal:
    return library.propose(ask, library.host(host_name or "gb10"))[0]


def _text(form: str, ways: list[Proposal], listen: str | None, cluster: Cluster) -> str:
    if listen:
        from firesteel.run.start.listen import listening  # what runs is loaded only when it is asked for

        ways = [listening(way, listen) for way in ways]
    pairs = [(way.plan.launch, known(way)) for way in ways]
    if form in _CLUSTER_FORMS:
        return _CLUSTER_FORMS[form](pairs, cluster)
    if len(pairs) > 1:
        return _compose_all(pairs)
    return _FORMS[form](*pairs[0])


def _compose_all(pairs: list[tuple[Launch, LaunchFacts]]) -> str:
    """One file of several: each with its own comments above it, under one `services`."""
    key = "services:\n"
    made = [render.compose(*pair).partition(key) for pair in pairs]
    return (
        "# One compose file for all models of a service file.\n"
        + key
        + "".join(f"\n{head}{body}" for head, _, body in made)
    )


def _to_paste(text: str) -> str:
    """Without comments: a zsh at a terminal takes them for commands."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def known(way: Proposal) -> LaunchFacts:
    """What the recipe, the plan and the catalog know beside the launch."""
    plan, recipe, model = way.plan, way.recipe, way.model
    start = plan.speed.start_up if plan.speed else None
    image = plan.launch.container.image if plan.launch.container else None
    return LaunchFacts(
        flag_reasons=_flag_reasons(way, plan.launch),
        env_reasons={name: setting.why for name, setting in recipe.env.items()} if recipe else {},
        start_up_s=start.seconds.high if start and start.phases else None,
        needed_bytes=round(plan.memory.needed.high),
        weights_bytes=plan.weights.total_bytes,
        digest=render.find_digest(image, library.catalog().images) if image else None,
        revision=model.revision if model else None,
        is_gated=bool(model and model.gated),
    )


def _flag_reasons(way: Proposal, launch: Launch) -> dict[str, str]:
    reasons = {name: setting.why for name, setting in way.recipe.flags.items()} if way.recipe else {}
    context, users = way.plan.cache.context, way.plan.cache.users
    for name in engines.size_flags(launch.engine, context, users):
        reasons.setdefault(name, f"{context:,} tokens for each of {users} at once")
    for name in _PLANNED:
        reasons.setdefault(name, f"from the plan for {way.plan.host.title}")
    return reasons


def _objection(way: Proposal) -> int:
    if not way.plan.fits:
        return 4
    return 3 if way.stops else 0


def _show(form: str, ways: list[Proposal], text: str, output: Path | None, as_json: bool) -> None:
    for way in ways:
        if not way.plan.fits:
            click.echo(
                f"{way.name} does not fit {way.plan.host.title}; see firesteel plan {way.name}", err=True
            )
        for finding in way.stops:
            click.echo(f"{way.name}: {finding.rule}: {finding.says}", err=True)
    if as_json:
        from firesteel.cli.output.documents import RenderJson

        names = [way.name for way in ways]
        path = str(output) if output else None
        common.print_json(RenderJson(name=names[0], names=names, format=form, text=text, path=path))
    elif output:
        click.echo(f"written: {output}", err=True)
    else:
        click.echo(text, nl=False)
