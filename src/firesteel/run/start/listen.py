"""Who can reach a launch: this host only by default, others only with a key that the engine asks for.

Docker's published ports bypass a host firewall, so without a key the whole network could use it.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

from firesteel.catalog.launches import listening_on
from firesteel.errors import Stopped, UsageError
from firesteel.launch import ENGINE_KEY_VARIABLES, LOOPBACK
from firesteel.planner.propose import Proposal
from firesteel.values import replace

__all__ = ["LOOPBACK", "is_wide", "listening", "reached_at"]


def is_wide(address: str) -> bool:
    return not _parsed(address).is_loopback


def reached_at(address: str, port: int) -> str:
    """The URL by which this host itself reaches it."""
    parsed = _parsed(address)
    host = LOOPBACK if parsed.is_unspecified else str(parsed)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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


def _parsed(address: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(address)
    except ValueError:
        raise UsageError(f"`{address}` is not an address to listen on", next="--listen 0.0.0.0") from None
