"""The gateway: one URL for several models, in this process; where the one of this home answers; its keys, and
what was used with them.

Nothing here may load PyYAML, rich or the planner: the gateway's process runs for weeks, and its memory
counts.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from firesteel.edge.home import find_home, write_text
from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway import keys as gateway_keys
from firesteel.gateway.key_limits import (
    NO_LIMITS,
    KeyLimits,
    RateLimit,
    TokenBudget,
    parse_budget,
    parse_rate_limit,
)
from firesteel.gateway.keys import MAX_PRIORITY, Key
from firesteel.library.run import services
from firesteel.values import Value

if TYPE_CHECKING:
    from firesteel.gateway.address import Address
    from firesteel.gateway.admin.usage import UsageReport
    from firesteel.gateway.serve import ServeEvent, ServeOptions
    from firesteel.run.service import Service

__all__ = [  # values of other packages that its functions take or return, and their parsers
    "MAX_PRIORITY",
    "Key",
    "KeyLimits",
    "RateLimit",
    "TokenBudget",
    "parse_budget",
    "parse_rate_limit",
]
SERVICE_FILE = "firesteel.yaml"
"""What `serve` reads in the current folder."""
_RELEASE_PAGES_S = 5.0
_LOOK_S = 2.0
_PHASES = ("starting", "ready", "hung", "unkept")


class PagePlan(Value):
    """The web page over services that run: a gateway that only looks."""

    options: ServeOptions
    entries: dict[str, Any]
    """The services, as models of a service file."""


def gateway() -> Address | None:
    """Where the gateway of this home answers; None: none runs."""
    from firesteel.gateway.address import read_address

    return read_address(find_home())


def gateway_url() -> str:
    """Of the gateway of this home; raises what to type where none runs."""
    if found := gateway():
        return found.url
    names = [service.name for service in services() if service.phase != "dead"]
    if names:
        raise FiresteelError(
            f"no gateway runs here; these run without one: {', '.join(names)}",
            next=f"firesteel serve {' '.join(names)}, which takes over what runs; firesteel ps lists it",
        )
    raise FiresteelError("no gateway runs here", next="firesteel serve, or firesteel top --url URL")


def certificate_of(url: str) -> str | None:
    """The file of the certificate that the gateway at this address shows, if it is the one of this home: so
    it is known, whoever signed it."""
    found, parts = gateway(), urlsplit(url)
    if found is None or not found.certificate or parts.scheme != "https":
        return None
    is_here = parts.hostname in ("127.0.0.1", "localhost", "::1", urlsplit(found.url).hostname, gethostname())
    return found.certificate if is_here and parts.port == urlsplit(found.url).port else None


def serve(options: ServeOptions, ends: asyncio.Event) -> AsyncIterator[ServeEvent]:
    """Serves the models of a service file at one URL, until `ends` is set."""
    from firesteel.gateway.serve import serve_file  # the HTTP server

    return serve_file(options, find_home(), ends)


def serve_options(
    models: tuple[str, ...] = (),
    path: Path | None = None,
    *,
    listen: str | None = None,
    cert: Path | None = None,
    cert_key: Path | None = None,
    cors: tuple[str, ...] = (),
    keep_models: bool = False,
    logs_prompts: bool = False,
) -> ServeOptions:
    """Of a service file, of models that are only named, or of the file in this folder; with the web page."""
    from firesteel.gateway.page import read_files, run_command
    from firesteel.gateway.serve import ServeOptions, write_service_file  # the HTTP server

    if listen is not None:
        require_address(listen)
    file = write_service_file(models, find_home()) if models else path or _default_file()
    return ServeOptions(
        file,
        listen,
        cert,
        cert_key,
        _origins(cors),
        keep_models=keep_models,
        logs_prompts=logs_prompts,
        page_files=read_files(),
        run_command=run_command,
    )


def run_gateway(
    options: ServeOptions,
    show: Callable[[ServeEvent], None],
    background: Coroutine[Any, Any, None] | None = None,
) -> None:
    """Serve in this process until a signal ends it. `show` gets each event; `background` runs as long."""
    from firesteel.gateway.http.server import new_loop
    from firesteel.gateway.serve import retain_free_memory

    retain_free_memory()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(options, show, background))


def require_address(listen: str) -> None:
    """Repeats the check of the service file's `listen`, whose own parser would load PyYAML."""
    host, _, port = listen.rpartition(":")
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
        is_valid = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UsageError(
            f"--listen `{listen[:80]}` is not an address and a port; write it like 127.0.0.1:8080",
            next="--listen 127.0.0.1:8080",
        )


def _origins(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """None: as the file says."""
    from firesteel.service_settings import parse_origins

    try:
        return parse_origins([word for word in words if word != "off"]) if words else None
    except ValueError as error:
        raise UsageError(f"--cors {error}", next="--cors loopback") from None


def _default_file() -> Path:
    file = Path(SERVICE_FILE)
    if not file.exists():
        raise UsageError(
            f"there is no {SERVICE_FILE} here, and no MODEL was given", next="firesteel serve smollm2"
        )
    return file


async def _serve(
    options: ServeOptions, show: Callable[[ServeEvent], None], background: Coroutine[Any, Any, None] | None
) -> None:
    from firesteel.gateway.serve import freeze_startup_objects

    ends = asyncio.Event()
    task = asyncio.ensure_future(background) if background else None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    async for event in serve(options, ends):
        show(event)
        if event.kind == "listening":
            freeze_startup_objects()
            _release_pages()
    if task:
        task.cancel()


def _release_pages() -> None:
    from firesteel.gateway.serve import release_free_memory

    release_free_memory()
    asyncio.get_running_loop().call_later(_RELEASE_PAGES_S, _release_pages)


def write_grafana_files(folder: Path, listen: str | None = None) -> list[Path]:
    """A dashboard and alert rules for a gateway that listens there; the files that were written."""
    from firesteel.gateway import grafana

    if listen is not None:
        require_address(listen)
    return grafana.write_grafana_files(folder, listen)


# --- the page over what runs ---


def plan_page(listen: str) -> PagePlan:
    """Each service that runs is a model at its own URL, so nothing is loaded, unloaded or stopped."""
    from firesteel.gateway.page import read_files, run_command
    from firesteel.gateway.serve import ServeOptions  # the HTTP server

    require_address(listen)
    entries = _entries()
    if not entries:
        raise UsageError(
            "nothing runs, so there is nothing to show", next="firesteel up, or firesteel serve smollm2"
        )
    file = find_home().root / "page.yaml"
    _write(file, entries)
    options = ServeOptions(file, listen, keep_models=True, page_files=read_files(), run_command=run_command)
    return PagePlan(options, entries)


def run_page(plan: PagePlan, show: Callable[[ServeEvent], None]) -> None:
    """Until a signal ends it; services that start or stop meanwhile come and go."""
    run_gateway(plan.options, show, _follow(plan.options.file, plan.entries))


def _entries() -> dict[str, Any]:
    """The services that run, as models of a service file."""
    from firesteel.run.service import all_services

    running = all_services(find_home())
    return {service.name: _entry(service) for service in running if service.phase in _PHASES}


def _entry(service: Service) -> dict[str, Any]:
    spec = service.spec
    size = spec.expected_bytes or spec.container_bytes
    memory = {"memory": f"{size}B"} if size else {}
    return {"url": spec.url.removesuffix("/v1"), "model": spec.model, **memory}


def _write(file: Path, entries: dict[str, Any]) -> None:
    """As JSON, which is YAML too and quotes what must be quoted."""
    write_text(file, json.dumps({"models": entries}, indent=1))


async def _follow(file: Path, entries: dict[str, Any]) -> None:
    """The gateway reads the file again when it changes. It needs one model: the last one stays."""
    while True:
        await asyncio.sleep(_LOOK_S)
        found = await asyncio.to_thread(_entries)
        if found and found != entries:
            entries = found
            _write(file, entries)


# --- keys and usage ---


def keys_file() -> Path:
    return gateway_keys.keys_path(find_home())


def parse_expiry(text: str) -> datetime:
    """After `12h` or `30d` from now, or after a day, `2026-12-31`."""
    return gateway_keys.parse_expiry(text, time.time())


def keys() -> tuple[Key, ...]:
    """The gateway's keys, without their tokens."""
    return tuple(gateway_keys.read_keys(keys_file()).values())


def add_key(
    name: str,
    *,
    scope: Literal["inference", "admin", "metrics"] = "inference",
    models: tuple[str, ...] | None = None,
    limits: KeyLimits | None = None,
    priority: int = 0,
    expires: datetime | None = None,
) -> tuple[Key, str]:
    """The key and its token, which is stored nowhere."""
    return gateway_keys.add_key(
        keys_file(),
        name,
        scope=scope,
        models=models,
        limits=limits or NO_LIMITS,
        priority=priority,
        expires=expires,
    )


def revoke_key(name: str) -> Key:
    """A running gateway refuses it within seconds."""
    return gateway_keys.revoke_key(keys_file(), name)


def usage(
    since: str | None = None,
    until: str | None = None,
    *,
    key: str | None = None,
    model: str | None = None,
    by: Iterable[str] = ("day", "key", "model"),
) -> UsageReport:
    """Requests and tokens by day, key and model, and what is left of the budgets; the last 30 days."""
    from firesteel.gateway.admin import usage as reports  # SQLite

    options = {"since": since, "until": until, "key": key, "model": model, "by": ",".join(by)}
    return reports.read_report(find_home(), reports.parse_query(options), time.time())


def usage_as_csv(report: UsageReport) -> str:
    from firesteel.gateway.admin.usage import csv_text

    return csv_text(report)
