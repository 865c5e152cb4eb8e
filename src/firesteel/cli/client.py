"""`firesteel client NAME [MODEL]`"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import click

from firesteel import engines, library
from firesteel.cli.endpoints import base_url
from firesteel.cli.options import common
from firesteel.edge.files import client_files
from firesteel.errors import UsageError
from firesteel.gateway.address import Address, read_address
from firesteel.launch import Ask, Launch
from firesteel.proposals import Proposal
from firesteel.render import clients
from firesteel.render.clients import ClientEndpoint, ClientSettings, KnownClient
from firesteel.run import Service

KEY = "FIRESTEEL_API_KEY"
"""The environment variable that clients read the key from."""
_TIMEOUT_S = 3
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}\Z", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Target:
    """What the client will talk to."""

    endpoint: ClientEndpoint
    kind: Literal["gateway", "service", "plan"]
    note: str


@click.command("client")
@click.argument("name", type=click.Choice(clients.client_names()))
@click.argument("model", required=False)
@click.option("--url", help="Point the client at this URL.")
@click.option("--direct", is_flag=True, help="Bypass the gateway and use the engine's own port.")
@click.option(
    "--context", type=click.IntRange(1, 2**30), help="Set the context length in tokens (default: the plan's)."
)
@click.option("--key", metavar="VARIABLE", help="Configure a key that is in this environment variable.")
@click.option(
    "--provider", default="firesteel", show_default=True, help="Call the service this in the client."
)
@click.option(
    "--write", is_flag=True, help="Write it to the client's own file, and keep a copy of the old one."
)
@click.option(
    "--file", type=click.Path(path_type=Path, dir_okay=False), help="With --write: write to this file."
)
@common.json_option
def command(
    name: str,
    model: str | None,
    url: str | None,
    direct: bool,
    context: int | None,
    key: str | None,
    provider: str,
    write: bool,
    file: Path | None,
    as_json: bool,
) -> None:
    """Print the configuration that points a client at a model, or write it to the client's file.

    MODEL is a model of the gateway while `firesteel serve` runs, a running service, or anything that
    `firesteel plan` takes; without it, what runs. Only the name of the key's variable is written, never the
    key.
    """
    for value, pattern, option in ((provider, _NAME, "--provider"), (key or KEY, _VARIABLE, "--key")):
        if not pattern.match(value):
            raise UsageError(f"`{value}` cannot be used for {option}", next=f"{option} {KEY.lower()}")
    target = _find_target(model, context, None if direct else read_address(library.home()), name)
    endpoint = replace(target.endpoint, provider=provider, key=key or target.endpoint.key)
    if url:
        base = base_url(url)
        endpoint = replace(endpoint, url=f"{base}/v1" if not urlsplit(base).path else url.rstrip("/"))
    client = clients.load_client(name)
    settings = clients.settings(name, endpoint)
    path = file or _config_path(client)
    written, backup = _write(name, client, settings, path) if write else (False, None)
    if as_json:
        _print_json(name, client, replace(target, endpoint=endpoint), settings, path, written, backup)
    elif write:
        click.echo(f"wrote {path}" if written else f"{path} is up to date already", err=True)
        if backup:
            click.echo(f"the old file is kept as {backup}", err=True)
    else:
        click.echo(clients.render_settings(settings, client.format), nl=False)
        if path:
            click.echo(f"this belongs in {path}; --write puts it there", err=True)
    for note in (*settings.notes, target.note):
        click.echo(f"note: {note}", err=True)


# --- what to point the client at ---


def _find_target(model: str | None, context: int | None, gateway: Address | None, client: str) -> _Target:
    """The gateway comes first: a port behind it answers only until its model is swapped out."""
    if gateway and gateway.models and (model is None or model in gateway.models):
        return _of_gateway(gateway, model or gateway.models[0], context, client)
    return _of_engine(model, context)


def _of_gateway(gateway: Address, model: str, context: int | None, client: str) -> _Target:
    key = KEY if gateway.has_keys else None
    url = _local_url(gateway.url)
    context = context or asyncio.run(_offered_context(url, model, key))
    endpoint = ClientEndpoint(f"{url}/v1", model, context, key=key)
    service = next((service for service in library.services() if service.name == model), None)
    if service and service.phase != "dead":
        engine = _of_service(service, context)
        endpoint = replace(endpoint, tools=engine.tools, images=engine.images, reasoning=engine.reasoning)
    note = f"this is the gateway, which loads `{model}` when a request asks for it"
    if others := [name for name in gateway.models if name != model]:
        note += f"; it serves {', '.join(others)} too: firesteel client {client} {others[0]}"
    if key:
        note += f"; set {KEY} to a key from `firesteel key add NAME`"
    return _Target(endpoint, "gateway", note)


def _local_url(url: str) -> str:
    """The URL for this machine: a server that listens on all addresses is reached at the loopback one."""
    parts = urlsplit(url)
    try:
        is_wildcard = ip_address(parts.hostname or "").is_unspecified
    except ValueError:
        return url
    host = "[::1]" if ":" in (parts.hostname or "") else "127.0.0.1"
    return f"{parts.scheme}://{host}:{parts.port}" if is_wildcard else url


async def _offered_context(url: str, model: str, variable: str | None) -> int | None:
    """The context that the gateway planned the model with; without the key it cannot be asked."""
    from firesteel.edge.http import engine_client  # slow to load, and only a gateway needs it

    key = os.environ.get(variable) if variable else None
    if variable and not key:
        return None
    rows = await engine_client.offered_models(url, timeout_s=_TIMEOUT_S, key=key)
    contexts = [row.get("context") for row in rows if row.get("id") == model]
    return next((context for context in contexts if type(context) is int and context > 0), None)


def _of_engine(model: str | None, context: int | None) -> _Target:
    """The running service of that name, or where a plan would serve it."""
    running = {service.name: service for service in library.services() if service.phase != "dead"}
    if model is None and len(running) == 1:
        model = next(iter(running))
    if model is None:
        names = ", ".join(running)
        what = f"several services are running: {names}" if running else "nothing is running; which MODEL?"
        raise UsageError(what, next=f"firesteel client NAME {next(iter(running), 'MODEL')}")
    if model in running:
        endpoint = _of_service(running[model], context)
        return _Target(endpoint, "service", f"this is the service `{model}` itself, on its own port")
    best = library.propose(Ask(model, context=context), library.host("gb10"))[0]
    launch = best.plan.launch
    endpoint = ClientEndpoint(f"http://127.0.0.1:{launch.port}/v1", launch.name, best.plan.cache.context)
    note = f"`{model}` does not run; this is where `up` would serve it"
    return _Target(_with_abilities(endpoint, launch, best), "plan", note)


def _of_service(service: Service, context: int | None) -> ClientEndpoint:
    """What its own command line serves; a recipe of the same name knows the rest about the model."""
    spec = service.spec
    launch = Launch(
        spec.name, spec.model, spec.engine, flags=engines.parse_argv(spec.engine, spec.start).flags
    )
    try:
        proposal = library.propose(Ask(service.name), library.host("gb10"))[0]
    except UsageError:
        proposal = None
    planned = proposal.plan.cache.context if proposal else None
    endpoint = ClientEndpoint(
        f"{spec.url}/v1",
        spec.model,
        context or engines.served_capacity(launch).context or planned,
        key=KEY if spec.is_guarded_by_key else None,
    )
    return _with_abilities(endpoint, launch, proposal)


def _with_abilities(endpoint: ClientEndpoint, launch: Launch, proposal: Proposal | None) -> ClientEndpoint:
    """Whether it takes tools and images, and reasons; None: not known."""
    flags = launch.flags
    modality = proposal.model.modality if proposal and proposal.model else None
    tools: bool | None = True if "tool-call-parser" in flags else None
    if launch.engine == "vllm":  # without both flags it answers HTTP 400 to `tool_choice: auto`
        tools = "tool-call-parser" in flags and flags.get("enable-auto-tool-choice") is True
    images = None if modality is None else "image" in modality
    if images and (launch.engine == "llamacpp" or flags.get("language-model-only") is True):
        images = None if launch.engine == "llamacpp" else False
    return replace(
        endpoint, tools=tools, images=images, reasoning=True if "reasoning-parser" in flags else None
    )


# --- the client's file ---


def _config_path(client: KnownClient) -> Path | None:
    if client.folder is None or client.new is None:
        return None
    return client_files.settings_path(client.folder.variable, client.folder.default, client.files, client.new)


def _write(
    name: str, client: KnownClient, settings: ClientSettings, path: Path | None
) -> tuple[bool, Path | None]:
    if path is None or client.format == "env":
        raise UsageError(
            f"{client.title} is configured by environment variables and has no file of its own",
            next=f"firesteel client {name}",
        )
    before = client_files.read(path)
    after = clients.merge_settings(before, settings, client.format, str(path))
    return (True, client_files.replace(path, after)) if after != before else (False, None)


def _print_json(
    name: str,
    client: KnownClient,
    target: _Target,
    settings: ClientSettings,
    path: Path | None,
    written: bool,
    backup: Path | None,
) -> None:
    from firesteel.cli.output.documents.client import ClientJson

    endpoint = target.endpoint
    common.print_json(
        ClientJson(
            client=name,
            title=client.title,
            speaks=client.speaks,
            url=endpoint.url,
            model=endpoint.model,
            context=endpoint.context,
            output=endpoint.output,
            key_variable=endpoint.key,
            format=client.format,
            text=clients.render_settings(settings, client.format),
            path=str(path) if path else None,
            written=written,
            backup=str(backup) if backup else None,
            taken=target.kind,
            notes=(*settings.notes, target.note),
            sources=client.sources,
        )
    )
