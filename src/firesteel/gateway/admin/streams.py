"""Event streams of the admin API: bounded in number, kept alive, and ended when the gateway ends. One of them
follows a log file that grows, is truncated or is replaced.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web

from firesteel.gateway.admin.events import Event
from firesteel.gateway.interfaces import AdminRejected, Rejection
from firesteel.run.service import MAX_TAIL_BYTES

MAX_STREAMS = 64
HEARTBEAT_S = 15.0
_FOLLOW_S = 0.5
STREAMS = web.AppKey("streams", set[asyncio.Task[object]])
IS_ENDING = web.AppKey("is_ending", asyncio.Event)
"""Set: streams end, and none begins."""


def end_streams(app: web.Application) -> None:
    """Call at the beginning of a drain: event streams do not end by themselves."""
    if not app[IS_ENDING].is_set():
        app[IS_ENDING].set()
        streams = app[STREAMS]
        for task in list(streams):
            task.cancel()


@asynccontextmanager
async def streaming(request: web.Request) -> AsyncIterator[web.StreamResponse]:
    """Server-sent events until the client leaves or the gateway ends; then the response ends properly."""
    streams, is_ending, task = request.app[STREAMS], request.app[IS_ENDING], asyncio.current_task()
    assert task is not None
    if is_ending.is_set():
        raise AdminRejected(Rejection(503, "draining", "the gateway is shutting down.", retry_after_s=10))
    if len(streams) >= MAX_STREAMS:
        why = f"there are already {MAX_STREAMS} event streams."
        raise AdminRejected(Rejection(503, "too_many_listeners", why, retry_after_s=10))
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    streams.add(task)
    try:
        await response.prepare(request)
        try:
            yield response
        except asyncio.CancelledError:
            if not is_ending.is_set():
                raise
            task.uncancel()
        except ConnectionResetError:
            pass  # the page was closed
    finally:
        streams.discard(task)


async def send_event(response: web.StreamResponse, event: str, data: str) -> None:
    """`data` must not contain line breaks."""
    await response.write(f"event: {event}\ndata: {data}\n\n".encode("utf-8", "replace"))


async def send_next(response: web.StreamResponse, queue: asyncio.Queue[Event]) -> None:
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            event = await queue.get()
    except TimeoutError:
        await response.write(b": still here\n\n")
        return
    await send_event(response, str(event.get("event", "message")), json.dumps(event))


async def follow_log(request: web.Request, tail: LogTail, count: int) -> web.StreamResponse:
    quiet_s = 0.0
    async with streaming(request) as response:
        lines = await asyncio.to_thread(tail.last, count)
        while True:
            for line in lines:
                await send_event(response, "line", line)
            quiet_s = 0.0 if lines else quiet_s + _FOLLOW_S
            if quiet_s >= HEARTBEAT_S:
                quiet_s = 0.0
                await response.write(b": still here\n\n")
            await asyncio.sleep(_FOLLOW_S)
            lines = await asyncio.to_thread(tail.more)
    return response


_MAX_LINE_CHARS = 64 * 2**10
_MAX_READ_BYTES = 256 * 2**10


class LogTail:
    """Keeps the file open: otherwise a new file could get the inode of the old one and be taken for it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._partial_line = ""

    def close(self) -> None:
        self._file.close()

    def last(self, count: int) -> list[str]:
        self._file.seek(max(0, os.fstat(self._file.fileno()).st_size - MAX_TAIL_BYTES))
        return self._read(MAX_TAIL_BYTES)[-count:]

    def more(self) -> list[str]:
        """Lines since the last call; a file that is missing for a moment has none."""
        opened = os.fstat(self._file.fileno())
        with suppress(FileNotFoundError):
            current = self._path.stat()
            if (current.st_ino, current.st_dev) != (opened.st_ino, opened.st_dev):
                self._file.close()
                self._file, self._partial_line = self._path.open("rb"), ""
            elif opened.st_size < self._file.tell():
                self._file.seek(0)
                self._partial_line = ""
        return self._read(_MAX_READ_BYTES)

    def _read(self, max_bytes: int) -> list[str]:
        text = self._partial_line + self._file.read(max_bytes).decode(errors="replace").replace("\r", "\n")
        *lines, self._partial_line = text.split("\n")
        if len(self._partial_line) > _MAX_LINE_CHARS:
            lines, self._partial_line = [*lines, self._partial_line], ""
        return [line[:_MAX_LINE_CHARS] for line in lines]
