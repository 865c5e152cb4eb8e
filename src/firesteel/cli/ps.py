"""`firesteel ps`"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import out, table
from firesteel.edge.files import text_files
from firesteel.edge.files.home import find_home
from firesteel.gateway.address import Address, read_address
from firesteel.library import documents, run
from firesteel.library.services import ServiceStatus, service_status
from firesteel.run.cluster_status import NodeStatus
from firesteel.run.live_figures import LiveFigures, read_figures
from firesteel.service_file import asks, read_service_file
from firesteel.units import show_bytes, show_rate

if TYPE_CHECKING:
    from firesteel.facts.host.gpu_reading import GpuReading
    from firesteel.rules.host_checks import HostFinding

_TIMEOUT_S = 3
_ANSWERS = {200, 401, 403}
"""A server that asks for a key answers, too."""


@click.command("ps")
@common.file_option("Show also which models of a service file do not run.")
@common.json_option
def command(path: Path | None, as_json: bool) -> None:
    """List the services that run, and the gateway."""
    services = run.services()
    live = read_figures(services)
    rows = [service_status(service, live.get(service.name)) for service in services]
    if path:
        rows = _with_file(path, rows)
    gateway = read_address(find_home())
    alarms, gpu = _alarms(rows), _gpu(rows)
    if as_json:
        host = tuple(map(documents.ps.HostAlarmJson.model_validate, alarms))
        common.print_json(documents.ps.PsJson(services=tuple(rows), gateway=gateway, host=host, gpu=gpu))
        return
    if gateway:
        out.print(typed(_gateway_line(gateway)))
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
    if gpu and gpu.temperature_c is not None:
        power = f", {gpu.power_w:.0f} W" if gpu.power_w is not None else ""
        out.print(f"GPU {gpu.temperature_c:.0f} °C{power}")
    for row in rows:
        if figures := _figures_line(row):
            out.print(f"{row.name}: {figures}")
        for line in _node_lines(row):
            out.print(line)
        if row.why:
            out.print(typed(f"{row.name}: {row.why}; next: {row.next}"), soft_wrap=True)
    for alarm in alarms:
        out.print(typed(f"host: {alarm.check}: {alarm.says}; next: firesteel doctor {alarm.check}"))


def _figures_line(row: ServiceStatus) -> str:
    """Means since the engine started, and how full its cache is now, as far as they are known."""
    known = row.figures or LiveFigures()
    parts = (
        show_rate(known.decode_tokens_per_s) if known.decode_tokens_per_s else "",
        f"first token after {known.first_token_ms:.0f} ms" if known.first_token_ms else "",
        f"{known.kv_used:.0%} of the KV cache in use" if known.kv_used is not None else "",
        f"{known.acceptance:.0%} of drafts accepted" if known.acceptance is not None else "",
    )
    return ", ".join(part for part in parts if part)


def _gpu(rows: list[ServiceStatus]) -> GpuReading | None:
    if not any(row.pid for row in rows):
        return None
    from firesteel.edge.host.gpu import read_gpu  # runs nvidia-smi

    return read_gpu()


def _alarms(rows: list[ServiceStatus]) -> tuple[HostFinding, ...]:
    """What is wrong with the GPU and its host while something runs on it."""
    if not any(row.pid for row in rows):
        return ()
    from firesteel.run.start.host_alarms import host_alarms  # loads the checks of `doctor`

    return host_alarms()


def _node_lines(row: ServiceStatus) -> list[str]:
    """Of a service over several hosts: a line for each, and what its runner told last."""
    if row.cluster is None:
        return []
    lines = [
        f"  {node.host:<12} rank {node.rank}  {node.phase:<8} {_memory_of(node)}".rstrip()
        for node in row.cluster.nodes
    ]
    return [*lines, *(f"  {notice}" for notice in row.cluster.notices[-3:])]


def _memory_of(node: NodeStatus) -> str:
    """Nothing of a node that does not answer."""
    if not node.available_bytes:
        return ""
    resident, available = show_bytes(node.resident_bytes), show_bytes(node.available_bytes)
    return f"pid {node.pid or '-'}, {resident} resident, {available} available"


def _gateway_line(gateway: Address) -> str:
    """Comes first, because the gateway starts and stops the services below it."""
    keys = "asks for a key" if gateway.has_keys else "asks for no key"
    return f"gateway {gateway.url}/v1 (pid {gateway.pid}) serves {', '.join(gateway.models)}; it {keys}"


def _with_file(path: Path, rows: list[ServiceStatus]) -> list[ServiceStatus]:
    """The file's models in its order; services that are not in it come last."""
    file = read_service_file(str(path), text_files.read_text(path, next="firesteel ps, to list what runs"))
    urls = {name: entry.addresses[0] for name, entry in file.models.items() if entry.addresses}
    elsewhere = asyncio.run(_ask(urls)) if urls else {}
    ours = {
        name: ServiceStatus(
            name,
            "not running",
            f"http://127.0.0.1:{ask.port}/v1",
            next=f"firesteel up -f {shlex.quote(str(path))} {name}",
        )
        for name, ask in asks(file).items()
    }
    running = {row.name: row for row in rows}
    ordered = {name: elsewhere.get(name) or ours[name] for name in file.models}
    return list({**ordered, **running}.values())


async def _ask(urls: dict[str, str]) -> dict[str, ServiceStatus]:
    """All at once, so that several servers that hang cost one timeout."""
    answers = await asyncio.gather(*(_answers(url) for url in urls.values()))
    return {
        name: ServiceStatus(name, "answers" if answered else "does not answer", url)
        for (name, url), answered in zip(urls.items(), answers, strict=True)
    }


async def _answers(url: str) -> bool:
    from firesteel.edge.http import engine_client  # slow to load; only a file with a `url` needs it

    root = url.rstrip("/").removesuffix("/v1")
    for path in ("/health", "/v1/models"):
        status = await engine_client.status(root + path, timeout_s=_TIMEOUT_S)
        if status in _ANSWERS or status is None:
            return status is not None
    return False
