"""`firesteel ps`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import out, table
from firesteel.library import documents
from firesteel.library.services import service_statuses
from firesteel.units import show_bytes, show_rate

if TYPE_CHECKING:
    from firesteel.gateway.address import Address
    from firesteel.library.services import ServiceStatus
    from firesteel.run.service import NodeStatus


@click.command("ps")
@options.file_option("Show also which models of a service file do not run.")
@options.json_option
def command(path: Path | None, as_json: bool) -> None:
    """List the services that run, and the gateway."""
    found = service_statuses(path)
    rows, gateway, gpu = found.services, found.gateway, found.gpu
    if as_json:
        options.print_json(documents.services.ps_json(found))
        return
    if gateway:
        out.print(typed(_gateway_line(gateway)))
    elif not rows:
        out.print(typed("nothing is running; next: firesteel up"), soft_wrap=True)
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
    for alarm in found.alarms:
        out.print(
            typed(f"host: {alarm.check}: {alarm.says}; next: firesteel doctor {alarm.check}"), soft_wrap=True
        )


def _figures_line(row: ServiceStatus) -> str:
    """Means since the engine started, and how full its cache is now, as far as they are known."""
    known = row.figures
    if known is None:
        return ""
    parts = (
        show_rate(known.decode_tokens_per_s) if known.decode_tokens_per_s else "",
        f"first token after {known.first_token_ms:.0f} ms" if known.first_token_ms else "",
        f"{known.kv_used:.0%} of the KV cache in use" if known.kv_used is not None else "",
        f"{known.acceptance:.0%} of drafts accepted" if known.acceptance is not None else "",
    )
    return ", ".join(part for part in parts if part)


def _node_lines(row: ServiceStatus) -> list[str]:
    """Of a service over several hosts: a line for each, and the last notices of its runner."""
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
