"""Where services listen, and how commands reach a server: a running service, or a URL with its key.

A launch can be reached from this host only, unless the user says otherwise; then its engine asks for a key.
Docker's published ports bypass a host firewall, so without a key the whole network could use it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from firesteel.catalog.launches import DEFAULT_PORT, listening_on
from firesteel.edge.home import Home
from firesteel.edge.host.process import port_is_free
from firesteel.errors import FiresteelError, HostNotReady, Stopped, UsageError
from firesteel.launch import ENGINE_KEY_VARIABLES, LOOPBACK
from firesteel.run.service import Service, all_services, pick
from firesteel.values import replace

if TYPE_CHECKING:  # asking a server needs no planner
    from firesteel.planner.propose import Proposal


def is_wide(address: str) -> bool:
    return not _parsed_address(address).is_loopback


def reached_at(address: str, port: int) -> str:
    """The URL by which this host itself reaches it."""
    parsed = _parsed_address(address)
    host = LOOPBACK if parsed.is_unspecified else str(parsed)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


_PORTS = 1000


def free_port(home: Home, avoid: Collection[int] = ()) -> int:
    """One that no program has now, and no service, which may be restarting."""
    taken = {*avoid, *(port_of(service) for service in all_services(home) if service.phase != "dead")}
    ports = (port for port in range(DEFAULT_PORT, DEFAULT_PORT + _PORTS) if port not in taken)
    found = next((port for port in ports if port_is_free(port)), None)
    if found is None:
        what = f"no port from {DEFAULT_PORT} to {DEFAULT_PORT + _PORTS - 1} is free"
        raise HostNotReady(what, next="give the model a `port`")
    return found


def port_of(service: Service) -> int | None:
    """None: another program has overwritten the service's file."""
    try:
        return urlsplit(service.spec.url).port
    except ValueError:
        return None


def listening(proposal: Proposal, address: str) -> Proposal:
    """The proposal, bound to an address; beyond loopback the engine asks for a key."""
    if address == LOOPBACK:
        return proposal
    launch = proposal.plan.launch
    variable = ENGINE_KEY_VARIABLES.get(launch.engine) if is_wide(address) else None
    if is_wide(address) and variable is None:
        raise Stopped(
            f"{launch.engine} takes its key only as an argument, where every user of the host can read it",
            next=f"firesteel up {proposal.name}, and a proxy with a key in front of it",
        )
    return replace(proposal, plan=replace(proposal.plan, launch=listening_on(launch, address, variable)))


def _parsed_address(address: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(address)
    except ValueError:
        raise UsageError(f"`{address}` is not an address to listen on", next="--listen 0.0.0.0") from None


_URL = re.compile(r"https?://[^\s\x00-\x20\"'<>\\^`{|}?#]{1,500}\Z", re.ASCII)
KEY_VARIABLES = ("FIRESTEEL_API_KEY", "OPENAI_API_KEY")


def base_url(url: str) -> str:
    """`http://host:8000/v1/` -> `http://host:8000`, or a UsageError."""
    try:
        parts = urlsplit(url)
        is_valid = bool(_URL.match(url) and parts.hostname) and parts.port != 0
    except ValueError:  # an impossible port, or a bracket that is never closed
        is_valid = False
    if not is_valid:
        raise UsageError(f"`{url[:80]}` is not the URL of a server", next="--url http://host:8000/v1")
    if parts.username or parts.password:
        raise UsageError("do not put a password in the URL", next=f"export {KEY_VARIABLES[0]}=...")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def key_from(environ: Mapping[str, str], variable: str | None = None) -> str | None:
    """Never from the command line, which other users of the machine can read."""
    if variable is None:
        return next((environ[name] for name in KEY_VARIABLES if environ.get(name)), None)
    if not environ.get(variable):
        raise UsageError(f"the variable {variable} is not set", next=f"export {variable}=...")
    return environ[variable]


def running_service(home: Home, name: str | None) -> Service:
    """If no service runs, the host is not ready; only an unknown name is the user's mistake."""
    try:
        return pick(home, name)
    except UsageError:
        raise
    except FiresteelError as error:
        raise HostNotReady(error.what, next=error.next) from error
