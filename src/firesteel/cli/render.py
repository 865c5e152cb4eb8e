"""`firesteel render MODEL --as FORM`"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from firesteel.cli.options import common, complete
from firesteel.edge.files import text_files
from firesteel.edge.files.home import find_home
from firesteel.errors import UsageError
from firesteel.hosts.cluster.rendered import BY_NODE, NodeFile
from firesteel.launch import Ask, EngineName
from firesteel.library import documents, plans
from firesteel.proposals import Proposal, require_weights
from firesteel.proposals.rendered import CLUSTER_FORMS, FORMS
from firesteel.render import Cluster
from firesteel.service_file import asks, read_service_file

FACTORY_FORMS = ("workflow", "timer", "kubernetes-runner")


@click.command("render")
@click.argument("models", metavar="[MODEL]...", nargs=-1, shell_complete=complete.recipes)
@click.option(
    "--as",
    "form",
    type=click.Choice([*FORMS, *CLUSTER_FORMS, "dockerfile", *FACTORY_FORMS]),
    default="docker",
    show_default=True,
    help="Write it for this tool.",
)
@click.option(
    "-o", "--output", type=common.PATH, help="Write it to this file; over several Sparks, into this folder."
)
@click.option("-f", "--file", type=common.FILE, help="Render the models of a service file.")
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
@common.runtime_options
@common.adapter_option
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
    writes one compose file with a service for each model. Over several Sparks (--nodes, or a recipe for two)
    there is a file for each of them, with the addresses of the nodes of `firesteel cluster`, and Kubernetes
    gets a LeaderWorkerSet. --as dockerfile takes the name or file of a recipe for an image instead
    (`firesteel image build --list`), and --as workflow, timer and kubernetes-runner take the policy of
    `firesteel image watch`. Exits 4 if a model does not fit and 3 if a rule stops it; the text is
    written in any case.
    """
    if form == "dockerfile":
        return _render_dockerfile(models, output, as_json)
    if form in FACTORY_FORMS:
        return _render_factory(models, form, output, as_json)
    asks_ = _asks(models, file, form, sizes)
    takes_several = form in CLUSTER_FORMS or (form == "compose" and file)
    if len(asks_) > 1 and not takes_several:
        first = asks_[0].name or asks_[0].model or ""
        raise UsageError(f"--as {form} takes one MODEL", next=_command_line((first,), file, form))
    if form not in CLUSTER_FORMS and (service or tailnet):
        raise UsageError(
            "--service and --tailnet are for Kubernetes", next=_command_line(models, file, "kubernetes")
        )
    if listen and form in CLUSTER_FORMS:
        again = f"{_command_line(models, file, form)} --tailnet"
        raise UsageError("--listen is not for Kubernetes; the Service decides who can reach it", next=again)
    is_native = any(ask.runtime == "native" for ask in asks_)  # its program is on this machine
    host = plans.host(host_name or ("local" if is_native else "gb10"))
    proposals = [plans.propose(ask, host)[0] for ask in asks_]
    for proposal in proposals:
        require_weights(proposal)
    names = Cluster(service, tailnet)
    over_hosts = form in (*BY_NODE, "kubernetes") and any(each.plan.launch.sparks > 1 for each in proposals)
    if over_hosts and len(proposals) > 1:
        raise UsageError("models over several Sparks are written one by one", next="name one MODEL")
    if over_hosts and form in BY_NODE:
        return _render_by_node(proposals[0], form, listen, output, as_json)
    if over_hosts:
        text = plans.render_for_kubernetes(proposals[0], names)
    else:
        text = plans.render_as(proposals, form, listen=listen, cluster=names)
    if form == "docker" and not (output or as_json) and sys.stdout.isatty():
        # Without comments: an interactive zsh takes them for commands.
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    if output:
        text_files.write_new(output, text)
    _show(form, proposals, text, output, as_json)
    return max(proposal.exit_code for proposal in proposals)


def _render_by_node(
    proposal: Proposal, form: str, listen: str | None, output: Path | None, as_json: bool
) -> int:
    """A file for each host."""
    files = asyncio.run(plans.render_by_node(proposal, form, listen=listen))
    if output:
        _write_all(output, {each.file: each.text for each in files})
    _show(form, [proposal], "\n".join(each.text for each in files), output, as_json, files)
    return proposal.exit_code


def _write_all(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        text_files.write_new(folder / name, text)


def _render_dockerfile(models: tuple[str, ...], output: Path | None, as_json: bool) -> int:
    from firesteel.edge.files.image_recipes import load_image_recipe
    from firesteel.render.dockerfile import dockerfile

    if len(models) != 1:
        raise UsageError("--as dockerfile takes one recipe for an image", next="firesteel image build --list")
    name, recipe = load_image_recipe(models[0])
    text = dockerfile(name, recipe)
    if output:
        text_files.write_new(output, text)
    _print("dockerfile", (name,), text, output, as_json)
    return 0


def _render_factory(models: tuple[str, ...], form: str, output: Path | None, as_json: bool) -> int:
    """`image watch` by itself: a workflow, two units, or the objects of a runner."""
    from firesteel.images.factory.policy import read_policies
    from firesteel.render import factory

    if len(models) > 1:
        raise UsageError(f"--as {form} takes one policy", next=f"firesteel render factory.yaml --as {form}")
    path = Path(models[0]) if models else find_home().root / "factory.yaml"
    policies = read_policies(path)
    every_s = min(policy.every for policy in policies.values())
    job = factory.FactoryJob(str(path), tuple(policies), every_s)
    if form == "timer":
        job = replace(job, file=str(path.absolute()))
        units = factory.timer_units(job, (sys.executable, "-P", "-m", "firesteel"), str(find_home().root))
        text = "\n".join(f"# {name}\n{unit}" for name, unit in units.items())
        if output:
            _write_all(output, units)
    else:
        text = factory.workflow(job) if form == "workflow" else factory.runner_manifests(job)
        if output:  # .github/workflows of a repository that has no workflow yet
            _write_all(output.parent, {output.name: text})
    _print(form, tuple(policies), text, output, as_json)
    return 0


def _asks(models: tuple[str, ...], file: Path | None, form: str, sizes: dict[str, Any]) -> list[Ask]:
    if file:
        if any(sizes.values()):
            raise UsageError("set sizes, engines and adapters in the service file", next=f"edit {file}")
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


def _show(
    form: str,
    proposals: list[Proposal],
    text: str,
    output: Path | None,
    as_json: bool,
    files: tuple[NodeFile, ...] = (),
) -> None:
    for proposal in proposals:
        name = proposal.name
        if not proposal.plan.fits:
            click.echo(f"{name} does not fit {proposal.plan.machine}; see firesteel plan {name}", err=True)
        for finding in proposal.stops:
            click.echo(f"{name}: {finding.rule}: {finding.says}", err=True)
    _print(form, tuple(proposal.name for proposal in proposals), text, output, as_json, files)


def _print(
    form: str,
    names: tuple[str, ...],
    text: str,
    output: Path | None,
    as_json: bool,
    files: tuple[NodeFile, ...] = (),
) -> None:
    if as_json:
        path = str(output) if output else None
        common.print_json(
            documents.render.RenderJson(
                name=names[0], names=names, format=form, text=text, path=path, nodes=files
            )
        )
    elif output:
        click.echo(f"wrote {output}", err=True)
    else:
        click.echo(text, nl=False)
