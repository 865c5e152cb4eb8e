"""Random walks of requests through every state, checked after each step.

    walk(random.Random(7)).counts

Engines answer well, badly, in pieces, or not at all; clients leave, half-close, read slowly and send more;
the dispatcher grants, rejects, holds, retries and stops. `World` keeps the books; what each client received
is read by a strict reader.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable

from firesteel.gateway.http.chunks import ChunkParser
from firesteel.gateway.http.head import ProtocolError, read_response
from firesteel.gateway.http.request import RequestState
from firesteel.gateway.http.upstream import Upstream
from tests.gateway.http.kit import DONE, STREAM, STREAMING, answer, chunked, event, request
from tests.gateway.http.request_world import World
from tests.gateway.http.test_direct import AGREED_TO_KEY, HANDSHAKE, KEY, REALTIME, raw_handshake

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
WHOLE = json.dumps({
    "choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}).encode()  # fmt: skip
LAST = chunked(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n')
EVENTS = STREAM + event("one") + event("two") + LAST
TOO_LONG = answer(b'{"error":"maximum context length is 8"}', status=b"400 Bad Request")
WEBSOCKET = raw_handshake(*HANDSHAKE, b"Sec-WebSocket-Key: " + KEY, path=REALTIME.encode())
REQUESTS = (
    request(CHAT),
    request(STREAMING),
    request(CHAT[:-1] + b',"stream":true}'),
    request(CHAT[:-1] + b',"stream":true}').replace(b"HTTP/1.1", b"HTTP/1.0"),
    request(CHAT, b"Connection: close"),
    request(CHAT[:-1] + b',"max_tokens":5,"stream":true}', path=b"/v1/messages"),
    request(b'{"model":"m","messages":[]}', path=b"/api/chat"),
    request(b'{"model":"m"}', path=b"/api/generate"),
    request(b'{"model":"m","prompt":"hi","keep_alive":"5m"}', path=b"/api/generate"),
    request(b"", path=b"/api/state", method=b"GET"),
    request(b"", path=b"/upstream/m/view", method=b"GET"),
    WEBSOCKET,
    WEBSOCKET,
)
RESPONSES = (
    answer(WHOLE, b"Content-Type: application/json"),
    EVENTS + DONE,
    EVENTS + DONE,
    EVENTS + DONE,
    STREAM + event("one"),
    STREAM,
    answer(b"data: {}\n\n", b"Content-Type: text/event-stream"),
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n",
    TOO_LONG,
    TOO_LONG,
    TOO_LONG,
    answer(b'{"error":"unknown field"}', status=b"422 No"),
    answer(b"{}", status=b"503 Busy"),
    answer(b"{}", status=b"429 Busy"),
    AGREED_TO_KEY + b"\x81\x02hi",
    STREAM + event("long" * 20_000) + DONE,
    b"HTTP/1.1 100 Continue\r\n\r\n" + answer(WHOLE),
    b"HTTP/1.1 nonsense\r\n\r\n",
    STREAM + b"zz\r\nnot a chunk",
    b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhalf",
    b"HTTP/1.1 204 No Content\r\n\r\n",
)
ENDPOINTS: tuple[dict[str, object], ...] = (
    {},
    {},
    {"policy": "drain"},
    {"counting": "timings"},
    {"counting": "timings"},
    {"speaks": ("messages",)},
    {"speaks": ("responses",)},
    {"counting": "timings"},
    {"served_name": b"org/M"},
)


class Broken(Exception):
    pass


class Walker:
    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.world = World()
        self.counts: Counter[str] = Counter()
        self.trail: list[str] = []
        self.left: dict[Upstream, bytes] = {}
        """What each engine connection is going to send of the response that it is at."""
        self.is_slow = False

    def step(self) -> None:
        moves = [move for move in _MOVES if self._is_possible(move)]
        (move,) = self.rnd.choices(moves, [_MOVES[move] for move in moves])
        self.trail.append(move.__name__)
        self.counts[move.__name__] += 1
        self.world.may_hold, self.world.may_retry = self.rnd.random() < 0.5, self.rnd.random() < 0.5
        move(self)
        self._check()
        self._settle()

    def end(self) -> None:
        """Every client leaves, every engine closes."""
        self.world.client_leaves()
        for upstream in self._engines():
            self._close(upstream)
        self._check()
        world = self.world
        if world.open or world.waiting:
            raise Broken(f"{len(world.open)} requests never ended")
        if world.submitted != len(world.outcomes) + world.abandoned:
            raise Broken("not one end for each submit")
        if self._engines() or world.is_connecting():
            raise Broken("a connection that serves nobody")
        if world.server.buffers.used_bytes:
            raise Broken(f"{world.server.buffers.used_bytes} bytes of the buffers are used by nobody")
        self._read_client()

    # -- what must hold --

    def _check(self) -> None:
        world = self.world
        for pending in world.open:
            state = pending.state  # type: ignore[attr-defined]  # all are `Request`
            self.counts[f"state: {state.value}"] += 1
            if state is RequestState.DONE:
                raise Broken("done, and the dispatcher does not know")
            if (state is RequestState.WAITING) != (pending in world.waiting):
                raise Broken(f"{state.value}, and waiting: {pending in world.waiting}")
        is_connecting = sum(not each.is_cancelled for each in world.pool.connecting)
        if is_connecting > 1:
            raise Broken("two connections are opened for one client")

    def _settle(self) -> None:
        """What the loop does next: closed transports are lost, and another client comes."""
        world = self.world
        if world.transport.closed:
            self._read_client()
            world.settle()
            world.connect_client()
            self.is_slow = False
        world.pool.connecting[:] = [each for each in world.pool.connecting if not each.is_cancelled]

    def _read_client(self) -> None:
        """Whole responses one after the other; only the last may be cut off, if the connection is closed."""
        transport = self.world.transport
        data = bytes(transport.written)
        while data:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                raise Broken(f"a head without an end: {data[:100]!r}")
            try:
                head, data = read_response(data[:end]), data[end + 4 :]
            except ProtocolError as error:
                raise Broken(f"{error}: {data[:100]!r}") from None
            self.counts[f"status: {head.status}"] += 1
            if head.status == 101:
                return
            if head.length is not None:
                is_whole, data = len(data) >= head.length, data[head.length :]
            elif head.is_chunked:
                chunks = ChunkParser()
                try:
                    position = chunks.follow(data)
                except ProtocolError as error:
                    raise Broken(f"{error}: {data[-300:]!r}") from None
                is_whole, data = chunks.is_over, data[position:]
            else:
                is_whole, data = True, data if head.status == 204 else b""
            if not is_whole and (data or not transport.closed):
                raise Broken("a response was cut off, and the connection goes on")
        transport.written.clear()

    # -- what can happen --

    def _engines(self) -> list[Upstream]:
        return [each for each in self.world.pool.upstreams if each.receiver is not None]

    def _is_possible(self, move: Callable[[Walker], None]) -> bool:
        world = self.world
        if move in (Walker.grant, Walker.reject, Walker.wait_status, Walker.fall_back):
            return bool(world.waiting)
        if move in (Walker.connected, Walker.unreachable):
            return world.is_connecting()
        if move in (Walker.engine_sends, Walker.engine_closes):
            return bool(self._engines())
        if move is Walker.ask:
            return world.client._request is None and not self.is_slow
        if move in (Walker.stop, Walker.tick, Walker.half_close, Walker.send_more):
            return world.client._request is not None
        if move is Walker.read_on:
            return self.is_slow
        if move is Walker.read_slowly:
            return not self.is_slow and world.client._request is not None
        return True

    def ask(self) -> None:
        data = self.rnd.choice(REQUESTS)
        self._read_client()
        cut = self.rnd.choice((0, 0, 0, len(data) // 2))
        for part in (data[:cut], data[cut:]):
            if part:
                self.world.send(part)

    def send_more(self) -> None:
        """Of the next request; or for a WebSocket."""
        self.world.send(self.rnd.choice((b"P", b"\r\n", b"\x81\x02yo")))

    def leave(self) -> None:
        self.world.transport.close()
        self._read_client()
        self.world.client_leaves()
        self.world.connect_client()
        self.is_slow = False

    def half_close(self) -> None:
        if not self.world.client.eof_received():
            self.world.transport.close()

    def read_slowly(self) -> None:
        self.is_slow = True
        self.world.client.pause_writing()

    def read_on(self) -> None:
        self.is_slow = False
        self.world.client.resume_writing()

    def grant(self) -> None:
        self.world.grant(pooled=self.rnd.random() < 0.6, **self.rnd.choice(ENDPOINTS))

    def reject(self) -> None:
        self.world.reject()

    def wait_status(self) -> None:
        self.world.wait_status()

    def fall_back(self) -> None:
        for pending in self.world.waiting:
            pending.falls_back("m", "other", "down")

    def stop(self) -> None:
        assert self.world.client._request is not None
        self.world.client._request.stop()

    def tick(self) -> None:
        pending = self.world.client._request
        assert pending is not None
        since_s = self.rnd.choice((0.0, 2.0, 2.0, 6.0, 6.0, 40.0, 1000.0))
        pending.tick(asyncio.get_running_loop().time() + since_s)

    def connected(self) -> None:
        self.world.connecting().ready(self.world.pool.new())

    def unreachable(self) -> None:
        self.world.connecting().failed("refused")

    def engine_sends(self) -> None:
        upstream = self.rnd.choice(self._engines())
        left = self.left.get(upstream)
        if not left and self.world.client._head is not None and self.world.client._head.websocket_key:
            left = self.rnd.choice((AGREED_TO_KEY, b"\x81\x02hi", self.rnd.choice(RESPONSES)))
        left = left or self.rnd.choice(RESPONSES)
        size = self.rnd.choice((1, 10, len(left) // 2, len(left), len(left)))
        self.left[upstream] = left[size:]
        receiver = upstream.receiver
        upstream.data_received(left[:size])
        if upstream.receiver is not receiver:
            self.left.pop(upstream)

    def engine_closes(self) -> None:
        self._close(self.rnd.choice(self._engines()))

    def _close(self, upstream: Upstream) -> None:
        self.left.pop(upstream, None)
        upstream.transport.close()
        upstream.connection_lost(self.rnd.choice((None, ConnectionResetError())))


_MOVES: dict[Callable[[Walker], None], int] = {
    Walker.ask: 20,
    Walker.grant: 20,
    Walker.connected: 20,
    Walker.engine_sends: 30,
    Walker.engine_closes: 4,
    Walker.unreachable: 3,
    Walker.reject: 2,
    Walker.wait_status: 2,
    Walker.fall_back: 2,
    Walker.stop: 1,
    Walker.tick: 6,
    Walker.send_more: 3,
    Walker.read_slowly: 2,
    Walker.read_on: 6,
    Walker.half_close: 1,
    Walker.leave: 2,
}
"""How often each is chosen."""


async def walk(rnd: random.Random, steps: int = 60) -> Walker:
    """Raises `Broken` where something does not hold."""
    walker = Walker(rnd)
    for _ in range(steps):
        walker.step()
        await asyncio.sleep(0)  # what was put off until the next turn of the loop
    walker.end()
    return walker
