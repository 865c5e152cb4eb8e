"""`firesteel render MODEL --as FORM`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import click

from firesteel.cli import options
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName
from firesteel.library import documents
from firesteel.library import render as library


@click.command("render")
@click.argument("models", metavar="[MODEL]...", nargs=-1, shell_complete=options.complete_recipe)
@click.option(
    "--as",
    "form",
    type=click.Choice(library.ALL_FORMS),
    default="docker",
    show_default=True,
    help="Write it for this tool.",
)
@click.option(
    "-o", "--output", type=options.PATH, help="Write it to this file; over several Sparks, into this folder."
)
@click.option("-f", "--file", type=options.FILE, help="Render the models of a service file.")
@click.option(
    "--listen", metavar="ADDRESS", help="Listen on this address, with a key (default: only 127.0.0.1)."
)
@click.option("--service", metavar="NAME", help="Kubernetes: name the Service.")
@click.option("--tailnet", is_flag=True, help="Kubernetes: publish that name in MagicDNS.")
@click.option("--active", metavar="MODEL", help="Kubernetes: run this model (default: the first).")
@click.option("--claim", metavar="NAME[=SIZE]", help="Kubernetes: use this claim for all weights.")
@options.host_option
@options.size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Use only this engine.")
@click.option(
    "--engine-version", "version", metavar="VERSION", help="Write it for this release of the engine."
)
@options.runtime_options
@options.adapter_option
@click.option(
    "--quant", metavar="NAME", help="Assume this weight format for a config: nvfp4, fp8, q4_k_m, ..."
)
@click.option("--nodes", type=click.IntRange(1, 8), help="Split it over this many Sparks.")
@options.json_option
def command(
    models: tuple[str, ...],
    form: str,
    output: Path | None,
    file: Path | None,
    listen: str | None,
    service: str | None,
    tailnet: bool,
    active: str | None,
    claim: str | None,
    host_name: str | None,
    as_json: bool,
    **sizes: Any,
) -> int:
    """Write the launch of MODEL as a command to paste, or as a file for another tool.

    Several MODELs make one Kubernetes manifest: one Service, and a Deployment for each model, of which
    --active runs; --as kubernetes-swap writes a script that switches between them. With --file, --as compose
    writes one compose file with a service for each model. Over several Sparks (--nodes, or a recipe for two)
    there is a file for each of them, with the addresses of the nodes of `firesteel cluster`, and Kubernetes
    gets a LeaderWorkerSet. --as dockerfile takes the name or file of a recipe for an image instead
    (`firesteel image build --list`), and --as workflow, timer and kubernetes-runner take the policy of
    `firesteel image watch`. Exits 4 if a model does not fit and 3 if a rule stops it; the text is
    written in any case.
    """
    if file and any(sizes.values()):
        raise UsageError("set sizes, engines and adapters in the service file", next=f"edit {file}")
    nodes = sizes.pop("nodes")
    rendered = library.render(
        models, form, file=file, ask=Ask(**sizes, sparks=nodes), host_name=host_name, listen=listen,
        service=service, tailnet=tailnet, active=active, claim=claim,
    )  # fmt: skip
    text = rendered.text
    is_for_terminal = form == "docker" and not (output or as_json or rendered.nodes)
    if is_for_terminal and sys.stdout.isatty():
        # Without comments: an interactive zsh takes them for commands.
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    if output:
        library.write_rendered(rendered, output)
    for proposal in rendered.proposals:
        name = proposal.name
        if not proposal.plan.fits:
            click.echo(f"{name} does not fit {proposal.plan.machine}; see firesteel plan {name}", err=True)
        for finding in proposal.stops:
            click.echo(f"{name}: {finding.rule}: {finding.says}", err=True)
    if as_json:
        options.print_json(documents.render.render_json(rendered, output))
    elif output:
        click.echo(f"wrote {output}", err=True)
    else:
        click.echo(text, nl=False)
    return rendered.exit_code
