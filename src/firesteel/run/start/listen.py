"""Who can reach a launch. Loopback by default; wider only with a key that the engine itself asks for.

Docker's published ports pass a host firewall, so a wide one without a key is open to the whole network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address

from firesteel.errors import Stopped, UsageError
from firesteel.launch import Container, Launch
from firesteel.render.launch_facts import KEY_VARIABLES
from firesteel.rules import Proposal

LOOPBACK = "127.0.0.1"


def key_in(secrets: Mapping[str, str]) -> str | None:
    return next((secrets[name] for name in KEY_VARIABLES.values() if name in secrets), None)


def is_wide(address: str) -> bool:
    return not _parsed(address).is_loopback


def reached_at(address: str, port: int) -> str:
    """The URL by which this host itself reaches it."""
    parsed = _parsed(address)
    host = LOOPBACK if parsed.is_unspecified else str(parsed)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listening(proposal: Proposal, address: str) -> Proposal:
    """The proposal, bound to an address. The key is passed by name: its value is in the secrets file."""
    if address == LOOPBACK:
        return proposal
    _parsed(address)
    launch = _bound(proposal.plan.launch, address)
    if is_wide(address):
        variable = KEY_VARIABLES.get(launch.engine)
        if variable is None:
            raise Stopped(
                f"{launch.engine} takes its key only as a word of its command, for all the host to read",
                next=f"firesteel up {proposal.name}, and a proxy with a key before it",
            )
        launch = replace(launch, env={**launch.env, variable: f"${variable}"})
    return replace(proposal, plan=replace(proposal.plan, launch=launch))


def _bound(launch: Launch, address: str) -> Launch:
    if launch.container is None:
        return replace(launch, flags={**launch.flags, "host": address})
    return replace(launch, container=_published(launch.container, address))


def _published(box: Container, address: str) -> Container:
    shown = f"[{address}]" if ":" in address else address
    moved = (each.replace(f"{LOOPBACK}:", f"{shown}:", 1) for each in box.publish)
    return replace(box, publish=tuple(moved))


def _parsed(address: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(address)
    except ValueError:
        raise UsageError(f"`{address}` is no address to listen on", next="--listen 0.0.0.0") from None
