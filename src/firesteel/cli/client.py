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
from firesteel.cli.options import common
from firesteel.edge.files import client_files
from firesteel.errors import UsageError
from firesteel.gateway.address import Address, read_address
from firesteel.launch import Ask, Launch
from firesteel.render import clients
from firesteel.render.clients import ClientEndpoint, ClientSettings, KnownClient
from firesteel.rules import Proposal
from firesteel.run import Service

KEY = "FIRESTEEL_API_KEY"
"""The variable that clients are told to take the key from."""
_PATIENCE_S = 3
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}\Z", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z", re.ASCII)
_URL = re.compile(r"https?://[^\s\x00-\x20\"'<>\\^`{|}?#]{1,500}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a client is pointed at, and why that."""

    endpoint: ClientEndpoint
    what: Literal["gateway", "service", "plan"]
    words: str


@click.command("client")
@click.argument("name", type=click.Choice(clients.client_names()))
@click.argument("model", required=False)
@click.option("--url", help="Where the service is, where it is not 127.0.0.1:8000 or what runs here.")
@click.option("--direct", is_flag=True, help="Past the gateway, to the engine's own port.")
@click.option(
    "--context", type=click.IntRange(1, 2**30), help="Tokens of its context, in place of the plan's."
)
@click.option("--key", metavar="VARIABLE", help=f"It asks for a key: the variable that holds it ({KEY}).")
@click.option("--provider", default="firesteel", show_default=True, help="What the client calls the service.")
@click.option(
    "--write", is_flag=True, help="Put it into the client's own file; a copy of the old one is kept."
)
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="With --write: into this file.")
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
    """The configuration of a client: what to paste, or with --write put where the client reads it.

    MODEL is one of the gateway's while `firesteel serve` runs, a running service, or anything that
    `firesteel plan` takes; without it, what runs. Keys are named by their variable and never written.
    """
    for said, shape, option in ((provider, _NAME, "--provider"), (key or KEY, _VARIABLE, "--key")):
        if not shape.match(said):
            raise UsageError(f"`{said}` cannot be used for {option}", next=f"{option} {KEY.lower()}")
    taken = _taken(model, context, None if direct else read_address(library.home()), name)
    endpoint = replace(taken.endpoint, provider=provider, key=key or taken.endpoint.key)
    endpoint = replace(endpoint, url=_address(url) if url else endpoint.url)
    about = clients.load_client(name)
    told = clients.settings(name, endpoint)
    place = file or _place(about)
    written, backup = _write(name, about, told, place) if write else (False, None)
    if as_json:
        _print_json(name, about, replace(taken, endpoint=endpoint), told, place, written, backup)
    elif write:
        click.echo(f"written: {place}" if written else f"{place} says so already", err=True)
        for line in [f"the old one is at {backup}"] if backup else []:
            click.echo(line, err=True)
    else:
        click.echo(clients.render_settings(told, about.format), nl=False)
        if place:
            click.echo(f"belongs into {place}; --write puts it there", err=True)
    for note in (*told.notes, taken.words):
        click.echo(f"note: {note}", err=True)


def _taken(model: str | None, context: int | None, gateway: Address | None, client: str) -> _Taken:
    """The gateway before the engines behind it: their ports answer only between two swaps."""
    if gateway and gateway.models and (model is None or model in gateway.models):
        return _of_gateway(gateway, model or gateway.models[0], context, client)
    return _of_engine(model, context)


def _of_gateway(gateway: Address, model: str, context: int | None, client: str) -> _Taken:
    key = KEY if gateway.has_keys else None
    url = _reached(gateway.url)
    found = ClientEndpoint(f"{url}/v1", model, context or asyncio.run(_offered(url, model, key)), key=key)
    service = next((each for each in library.services() if each.name == model), None)
    if service and service.phase != "dead":
        its = _of_service(service, context)
        found = replace(found, tools=its.tools, images=its.images, reasoning=its.reasoning)
    words = f"this is the gateway, which loads `{model}` when it is asked for"
    if others := [each for each in gateway.models if each != model]:
        words += f"; it serves {', '.join(others)} too: firesteel client {client} {others[0]}"
    if key:
        words += f"; {KEY} is a key of `firesteel key add NAME`"
    return _Taken(found, "gateway", words)


def _reached(url: str) -> str:
    """By this machine: one that listens everywhere is at the loopback."""
    parts = urlsplit(url)
    try:
        is_everywhere = ip_address(parts.hostname or "").is_unspecified
    except ValueError:
        return url
    host = "[::1]" if ":" in (parts.hostname or "") else "127.0.0.1"
    return f"{parts.scheme}://{host}:{parts.port}" if is_everywhere else url


async def _offered(url: str, model: str, key: str | None) -> int | None:
    """The context that the gateway planned it with. Who has no key is not told, and the client neither."""
    from firesteel.edge.http import engine_client  # slow to load, and only a gateway needs it

    held = os.environ.get(key) if key else None
    if key and not held:
        return None
    rows = await engine_client.offered_models(url, timeout_s=_PATIENCE_S, key=held)
    contexts = [row.get("context") for row in rows if row.get("id") == model]
    return next((each for each in contexts if type(each) is int and each > 0), None)


def _of_engine(model: str | None, context: int | None) -> _Taken:
    """What runs under that name, or what a plan of that name would serve."""
    running = {service.name: service for service in library.services() if service.phase != "dead"}
    if model is None and len(running) == 1:
        model = next(iter(running))
    if model is None:
        names = ", ".join(running)
        what = f"several are running: {names}" if running else "nothing is running, so which MODEL?"
        raise UsageError(what, next=f"firesteel client NAME {next(iter(running), 'MODEL')}")
    if model in running:
        found = _of_service(running[model], context)
        return _Taken(found, "service", f"this is the service `{model}` itself, at its own port")
    best = library.propose(Ask(model, context=context), library.host("gb10"))[0]
    launch = best.plan.launch
    found = ClientEndpoint(f"http://127.0.0.1:{launch.port}/v1", launch.name, best.plan.cache.context)
    return _Taken(
        _able(found, launch, best), "plan", f"`{model}` does not run; this is where `up` would serve it"
    )


def _of_service(service: Service, context: int | None) -> ClientEndpoint:
    """Its own command says what it serves; what a recipe of its name adds is the model's own."""
    spec = service.spec
    flags = engines.parse_argv(spec.engine, spec.start).flags
    launch = Launch(spec.name, spec.model, spec.engine, flags=flags)
    try:
        way = library.propose(Ask(service.name), library.host("gb10"))[0]
    except UsageError:
        way = None
    planned = way.plan.cache.context if way else None
    key = KEY if spec.is_guarded_by_key else None
    found = ClientEndpoint(
        f"{spec.url}/v1", spec.model, context or engines.served_capacity(launch).context or planned, key=key
    )
    return _able(found, launch, way)


def _able(endpoint: ClientEndpoint, launch: Launch, way: Proposal | None) -> ClientEndpoint:
    """What the launch lets it do. Not known is not said."""
    flags, modality = launch.flags, way.model.modality if way and way.model else None
    tools: bool | None = True if "tool-call-parser" in flags else None
    if launch.engine == "vllm":  # without both it answers HTTP 400 to a client that leaves the choice open
        tools = "tool-call-parser" in flags and flags.get("enable-auto-tool-choice") is True
    images = None if modality is None else "image" in modality
    if images and (launch.engine == "llamacpp" or flags.get("language-model-only") is True):
        images = None if launch.engine == "llamacpp" else False
    return replace(
        endpoint, tools=tools, images=images, reasoning=True if "reasoning-parser" in flags else None
    )


def _address(url: str) -> str:
    """Up to and with `/v1`. A password in an address would end up in a file."""
    if _URL.match(url) and _has_host(url):
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
    raise UsageError(f"`{url[:80]}` is no address of a service", next="--url http://spark:8000")


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.hostname is not None and parts.port != 0 and "@" not in parts.netloc
    except ValueError:  # a port that is none, a bracket that is never closed
        return False


def _place(about: KnownClient) -> Path | None:
    if about.folder is None or about.new is None:
        return None
    return client_files.settings_path(about.folder.variable, about.folder.default, about.files, about.new)


def _write(
    name: str, about: KnownClient, told: ClientSettings, place: Path | None
) -> tuple[bool, Path | None]:
    if place is None or about.format == "env":
        raise UsageError(
            f"{about.title} is told by variables and has no file of its own", next=f"firesteel client {name}"
        )
    before = client_files.read(place)
    after = clients.merge_settings(before, told, about.format, str(place))
    return (True, client_files.replace(place, after)) if after != before else (False, None)


def _print_json(
    name: str,
    about: KnownClient,
    taken: _Taken,
    told: ClientSettings,
    place: Path | None,
    written: bool,
    backup: Path | None,
) -> None:
    from firesteel.cli.output.documents import ClientJson, SourceJson

    endpoint = taken.endpoint
    common.print_json(
        ClientJson(
            client=name,
            title=about.title,
            speaks=about.speaks,
            url=endpoint.url,
            model=endpoint.model,
            context=endpoint.context,
            output=endpoint.output,
            key_variable=endpoint.key,
            format=about.format,
            text=clients.render_settings(told, about.format),
            path=str(place) if place else None,
            written=written,
            backup=str(backup) if backup else None,
            notes=[*told.notes, taken.words],
            taken=taken.what,
            sources=[SourceJson(url=source.url, seen=source.seen.isoformat()) for source in about.sources],
        )
    )
