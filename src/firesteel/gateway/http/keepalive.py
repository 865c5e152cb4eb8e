"""Sockets that notice a peer which vanished without a word."""

from __future__ import annotations

import asyncio
import socket

_IDLE_S, _EVERY_S, _TIMES = 60, 15, 4


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Has the kernel ask a silent peer whether it is there: one that lost its network keeps a model busy."""
    link = transport.get_extra_info("socket")
    if link is None or link.family not in (socket.AF_INET, socket.AF_INET6):
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _EVERY_S), ("TCP_KEEPCNT", _TIMES)):
        if hasattr(socket, name):  # macOS has no TCP_KEEPIDLE
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
