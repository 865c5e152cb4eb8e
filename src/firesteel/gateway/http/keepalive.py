"""Notice a peer that has vanished, by TCP keepalive, or that was reset."""

from __future__ import annotations

import asyncio
import socket

_IDLE_S, _EVERY_S, _TIMES = 60, 15, 4
_TCP_CLOSE = 7
"""The state after a reset, in Linux."""


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Have the kernel probe a silent peer: one that has lost its network would keep a model busy."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _EVERY_S), ("TCP_KEEPCNT", _TIMES)):
        if hasattr(socket, name):  # macOS has no TCP_KEEPIDLE
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has answered with a reset: it is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)
    except (OSError, ValueError):  # uvloop reports a closed descriptor with the latter
        return True
