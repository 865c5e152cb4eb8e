"""The proxy: an HTTP server on loopback that answers honestly but for one change."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.run.adversary.change import Call, Change, Json, Wire, parts
from tests.run.adversary.honest import Honest
from tests.run.adversary.speaker import Speaker

_TOGETHER_S, _TURNS = 0.06, 30
_PARTNER_S = 0.5
"""How long a request waits for another one to exchange answers with."""


@dataclass(slots=True)
class Adversary:
    honest: Honest | Speaker
    change: Change = field(default_factory=Change)
    reasoning: bool = False
    time_scale: float = 1.0
    asked: list[Json] = field(default_factory=list)
    """Every completion request, in order."""
    sent: list[bytes | float] = field(default_factory=list)
    """Every write of an answer, and every pause in seconds, in order."""
    used_tokens: int = 0
    """By all requests, as the honest server counts them: prompts and answers."""
    _waiting: list[tuple[Json, asyncio.Future[Json]]] = field(default_factory=list)
    _running: list[tuple[Json, list[Json]]] = field(default_factory=list)
    """Requests that are being answered, each with those that ran at the same time."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one_request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "POST" and path.endswith("/completions"):
            again = await self._completion(path, json.loads(body), writer)
            return again and headers.get("connection") != "close"
        if method == "POST":
            request = json.loads(body)
            status, answer = await asyncio.to_thread(self.honest.post, path, request)
            if path.endswith("/embeddings"):
                vectors = [row["embedding"] for row in answer["data"]]
                for row, vector in zip(
                    answer["data"], self.change.vectors(vectors, request["input"]), strict=True
                ):
                    row["embedding"] = vector
        else:
            status, answer = await asyncio.to_thread(self.honest.get, path)
        again = await _Sender(writer, Wire(), self.time_scale, self.sent).plain(status, answer)
        return again and headers.get("connection") != "close"

    async def _completion(self, path: str, request: Json, writer: asyncio.StreamWriter) -> bool:
        before = sum(one.get("messages") == request.get("messages") for one in self.asked)
        self.asked.append(request)
        others = await self._at_once(path, request) if self.change.gathers else ()
        call = Call(request, len(self.asked), before, others)
        wire = self.change.wire_of(call) if self.change.wire_of else self.change.wire
        sender = _Sender(writer, wire, self.time_scale, self.sent)
        if (status := self.change.status(call)) != 200:
            return await sender.plain(
                status, {"error": {"message": "CUDA error: device lost", "code": status}}
            )
        asked = self.change.ask(request, call)
        if self.change.swap:
            asked = await self._partner(asked) | {key: request[key] for key in ("stream",) if key in request}
        status, answer = await asyncio.to_thread(self.honest.post, path, asked, self.reasoning)
        self.used_tokens += _used(answer)
        if isinstance(answer, list):
            return await sender.stream(self.change.chunks(answer, call))
        return await sender.plain(status, self.change.plain(answer, call) if status == 200 else answer)

    async def _at_once(self, path: str, request: Json) -> tuple[str, ...]:
        """The honest answers to what runs at the same time."""
        mine: tuple[Json, list[Json]] = (request, [one for one, _ in self._running])
        for _, others in self._running:
            others.append(request)
        self._running.append(mine)
        for _ in range(_TURNS):  # of the loop, in each of which what is on its way gets further
            await asyncio.sleep(_TOGETHER_S / _TURNS)
        self._running.remove(mine)
        answers = [await asyncio.to_thread(self.honest.post, path, other) for other in mine[1]]
        return tuple(_said(answer) for _, answer in answers)

    async def _partner(self, request: Json) -> Json:
        """The request that came at the same time, or this one."""
        for waiting in self._waiting:
            if waiting[0]["messages"] != request["messages"]:
                self._waiting.remove(waiting)
                waiting[1].set_result(request)
                return waiting[0]
        mine = (request, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        try:
            return await asyncio.wait_for(mine[1], _PARTNER_S * max(0.2, self.time_scale))
        except TimeoutError:
            self._waiting.remove(mine)
            return request


def _used(answer: Any) -> int:
    chunks = answer if isinstance(answer, list) else [answer]
    return sum((chunk.get("usage") or {}).get("total_tokens", 0) for chunk in chunks)


def _said(answer: Any) -> str:
    chunks = answer if isinstance(answer, list) else [answer]
    return "".join(part.get("content") or "" for chunk in chunks for part in parts(chunk))


@dataclass(slots=True)
class _Sender:
    """Writes one answer; says whether the connection can be used again."""

    writer: asyncio.StreamWriter
    wire: Wire
    time_scale: float
    sent: list[bytes | float]

    async def plain(self, status: int, answer: Any) -> bool:
        body = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=self.wire.is_ascii)
        raw = self.wire.encode(self.wire.first + body)
        framing = "length" if self.wire.framing == "chunked" else self.wire.framing
        return await self._send(status, "application/json", [raw], framing)

    async def stream(self, chunks: list[Json]) -> bool:
        wire = self.wire
        indent = 1 if wire.is_split else None
        texts = [json.dumps(chunk, ensure_ascii=wire.is_ascii, indent=indent) for chunk in chunks]
        events = [wire.prefix + one.replace("\n", f"\n{wire.prefix}") for one in texts]
        events += [wire.prefix + wire.done] if wire.done is not None else []
        raws = [wire.encode((wire.before + event + "\n\n").replace("\n", wire.newline)) for event in events]
        raws[:1] = [wire.first.encode() + b"".join(raws[:1])]
        return await self._send(200, "text/event-stream; charset=utf-8", raws, wire.framing)

    async def _send(self, status: int, kind: str, raws: list[bytes], framing: str) -> bool:
        wire = self.wire
        headers = {"Content-Type": kind, "Server": "uvicorn"}
        if wire.gzip:
            raws, headers["Content-Encoding"] = [gzip.compress(b"".join(raws))], "gzip"
        total = sum(map(len, raws))
        if framing == "length":
            headers["Content-Length"] = str(total + wire.length_error)
        elif framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Connection"] = "close"
        head = f"{wire.version} {status} {'OK' if status == 200 else 'Error'}\r\n"
        head += "".join(f"{wire.header(name)}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        if wire.slice_bytes is not None:
            whole, size = b"".join(raws), wire.slice_bytes or total or 1
            raws = [whole[i : i + size] for i in range(0, total, size)]
        await self._sleep(wire.first_pause_s)
        self._write(head.encode())
        sent = 0
        for raw in raws:
            if wire.stall_at is not None and sent >= wire.stall_at * total:
                await self._sleep(3600)
            sent += len(raw)
            if wire.cut_at is not None and sent > wire.cut_at * total:
                raw = raw[: len(raw) // 2]
            self._write(b"%x\r\n%s\r\n" % (len(raw), raw) if framing == "chunked" else raw)
            await self.writer.drain()
            if wire.cut_at is not None and sent > wire.cut_at * total:
                return False
            await self._sleep(wire.pause_s)
        if framing == "chunked":
            self._write(b"0\r\n\r\n")
        await self.writer.drain()
        return framing != "close" and not wire.length_error and wire.version == "HTTP/1.1"

    def _write(self, raw: bytes) -> None:
        self.sent.append(raw)
        self.writer.write(raw)

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            self.sent.append(seconds)
            await asyncio.sleep(seconds * self.time_scale)


@asynccontextmanager
async def serving(adversary: Adversary, port: int = 0) -> AsyncIterator[str]:
    """Serves on loopback; gives the address as http://host:port."""
    handlers: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.create_task(adversary.handle(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", port, limit=2**26)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for handler in handlers:
            handler.cancel()
        for result in await asyncio.gather(*handlers, return_exceptions=True):
            if isinstance(result, LookupError):  # an answer that is not recorded
                raise result
