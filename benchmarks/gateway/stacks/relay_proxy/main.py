"""The least that a Python proxy can do: uvloop, two protocols, bytes passed on unread. It knows neither keys
nor models; what it costs is what the event loop costs."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import uvloop


class End(asyncio.Protocol):
    other: Any = None
    """The transport of the other side, once there is one. Not typed: a check would be an instruction more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


class Client(End):
    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
        else:
            self.transport.pause_reading()  # the rest of a long prompt waits for the connection
            task = asyncio.ensure_future(self.connect(data))
            task.add_done_callback(asyncio.Task.result)

    async def connect(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.other, end = await loop.create_connection(End, "127.0.0.1", int(sys.argv[2]))
        end.other = self.transport
        self.other.write(data)
        self.transport.resume_reading()


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Client, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
