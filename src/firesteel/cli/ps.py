"""`firesteel ps`"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Literal

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.documents import GatewayJson, PsJson, ServiceJson
from firesteel.cli.output.fill import service_json
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import out, table
from firesteel.edge.files import text_files
from firesteel.gateway.address import Address, read_address
from firesteel.service_file import asks, read_service_file

_PATIENCE_S = 3
_THERE = {200, 401, 403}
"""Whoever wants a key is there too."""


@click.command("ps")
@click.option(
    "-f", "--file", "path", type=click.Path(path_type=Path), help="What of a service file runs, and what not."
)
@common.json_option
def command(path: Path | None, as_json: bool) -> None:
    """What runs."""
    rows = [service_json(service) for service in library.services()]
    if path:
        rows = _beside(path, rows)
    gateway = read_address(library.home())
    if as_json:
        common.print_json(PsJson(services=rows, gateway=_gateway_json(gateway) if gateway else None))
        return
    if gateway:
        out.print(typed(_gateway_words(gateway)))
    elif not rows:
        out.print(typed("nothing is running; next: firesteel up"))
    if not rows:
        return
    out.print(
        table(
            ("name", "phase", "url", "pid", "restarts"),
            [(row.name, row.phase, row.url, str(row.pid or "-"), str(row.restarts or "-")) for row in rows],
        )
    )
    for row in rows:
        if row.why:
            out.print(typed(f"{row.name}: {row.why}; next: {row.next}"))


def _gateway_json(gateway: Address) -> GatewayJson:
    return GatewayJson(
        url=gateway.url, models=list(gateway.models), has_keys=gateway.has_keys, pid=gateway.pid
    )


def _gateway_words(gateway: Address) -> str:
    """It loads and stops what is below it, so it is named first."""
    keys = "wants a key" if gateway.has_keys else "wants no key"
    return f"gateway {gateway.url}/v1 (pid {gateway.pid}) serves {', '.join(gateway.models)}; it {keys}"


def _beside(path: Path, rows: list[ServiceJson]) -> list[ServiceJson]:
    """In the file's order; what runs and is not in it comes last."""
    file = read_service_file(str(path), text_files.read_text(path, next="firesteel ps, for all that runs"))
    urls = {name: entry.addresses[0] for name, entry in file.models.items() if entry.addresses}
    elsewhere = asyncio.run(_ask(urls)) if urls else {}
    ours = {
        name: _not_running(name, f"http://127.0.0.1:{ask.port}/v1", path) for name, ask in asks(file).items()
    }
    running = {row.name: row for row in rows}
    ordered = {name: elsewhere.get(name) or ours[name] for name in file.models}
    return list({**ordered, **running}.values())


async def _ask(urls: dict[str, str]) -> dict[str, ServiceJson]:
    """All at once: one that hangs costs no more than its own patience."""
    there = await asyncio.gather(*(_answers(url) for url in urls.values()))
    return {
        name: _row(name, "answers" if answers else "does not answer", url, None)
        for (name, url), answers in zip(urls.items(), there, strict=True)
    }


async def _answers(url: str) -> bool:
    from firesteel.edge.http import engine_client  # only a file with a `url` needs it, and it is slow to load

    root = url.rstrip("/").removesuffix("/v1")
    for path in ("/health", "/v1/models"):
        status = await engine_client.status(root + path, timeout_s=_PATIENCE_S)
        if status in _THERE or status is None:
            return status is not None
    return False


def _not_running(name: str, url: str, path: Path) -> ServiceJson:
    return _row(name, "not running", url, f"firesteel up -f {shlex.quote(str(path))} {name}")


def _row(
    name: str, phase: Literal["not running", "answers", "does not answer"], url: str, next: str | None
) -> ServiceJson:
    return ServiceJson(
        name=name,
        phase=phase,
        url=url,
        pid=None,
        started_at=None,
        restarts=0,
        at_boot=False,
        why=None,
        next=next,
        log=None,
    )
