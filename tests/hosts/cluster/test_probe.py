"""The probe as this host runs it: a child process that listens, or tries a link."""

from __future__ import annotations

import json
import socket
import struct
import subprocess

import pytest

from firesteel.errors import HostNotReady
from firesteel.hosts.cluster.nodes import Channel

HERE = Channel("spark1")


def test_a_reset_connection_does_not_end_the_listener() -> None:
    argv = HERE.argv("probe", "listen", "127.0.0.1")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdin and listener.stdout
        where = ("127.0.0.1", json.loads(listener.stdout.readline())["port"])
        with socket.create_connection(where, timeout=10) as reset:
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with socket.create_connection(where, timeout=10) as next_one:
            next_one.sendall(b"x")
            next_one.shutdown(socket.SHUT_WR)
            assert next_one.recv(1) == b"", "it was read to its end, and closed"
        listener.stdin.close()


async def test_a_probe_of_this_host_that_takes_too_long_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(HostNotReady, match="spark1 did not answer within"):
            await HERE.ask("probe", "reach", "127.0.0.1", str(port), "0", "60", timeout_s=0.2)
