"""A server's own paths and WebSockets through the gateway: a real WebSocket library on both sides, and
hostile handshakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from firesteel.gateway.interfaces import Caller, Rejection, Timeouts
from firesteel.values import replace
from tests.gateway.http.kit import PATIENCE_S, EngineConnection, RunningGateway, answer, request

REALTIME = "/v1/realtime?model=m"
KEY = b"AAAAAAAAAAAAAAAAAAAAAA=="
ACCEPT = b"ICX+Yqv66kxgM0FcWaLWlFLwTAI="
"""Of that key."""
AGREED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n%b\r\n"
AGREED_TO_KEY = AGREED % (b"Sec-WebSocket-Accept: " + ACCEPT + b"\r\n")
HANDSHAKE = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13")
Handler = Callable[[ServerConnection], Awaitable[None]]


async def echo(session: ServerConnection) -> None:
    async for message in session:
        await session.send(message)


@asynccontextmanager
async def sessions(gateway: RunningGateway, handler: Handler) -> AsyncIterator[str]:
    """A WebSocket server behind the gateway; its address through the gateway."""
    subprotocols = [Subprotocol("realtime")]
    async with serve(handler, "127.0.0.1", 0, max_size=None, subprotocols=subprotocols) as server:
        port = server.sockets[0].getsockname()[1]
        assert gateway.dispatcher.endpoint is not None
        gateway.dispatcher.endpoint = replace(
            gateway.dispatcher.endpoint, address=("127.0.0.1", port), headers=b"X-Engine: yes\r\n"
        )
        yield f"ws://127.0.0.1:{gateway.port}"


def opened(url: str, **headers: str) -> connect:
    return connect(
        url,
        additional_headers=headers,
        subprotocols=[Subprotocol("realtime")],
        max_size=None,
        proxy=None,
        open_timeout=PATIENCE_S,
    )


async def finished(gateway: RunningGateway) -> None:
    await gateway.dispatcher.until(lambda: gateway.dispatcher.outcomes)


def raw_handshake(*lines: bytes, path: bytes = REALTIME.encode(), method: bytes = b"GET") -> bytes:
    return b"\r\n".join((b"%b %b HTTP/1.1" % (method, path), b"Host: gateway", *lines, b"", b""))


@pytest.mark.parametrize("path", [REALTIME, "/upstream/m/ws?client=7"])
async def test_a_session(gateway: RunningGateway, path: str) -> None:
    seen: list[ServerConnection] = []

    async def handler(session: ServerConnection) -> None:
        seen.append(session)
        await echo(session)

    async with sessions(gateway, handler) as url:
        async with opened(url + path, Authorization="Bearer secret") as client:
            assert client.subprotocol == "realtime"
            for message in ("hello", b"\0\xff" * 10, "", "x" * 2_000_000, b"y" * 300_000):
                await client.send(message)
                assert await client.recv() == message
            await (await client.ping())
            await client.close(4001, "enough")
        await seen[0].wait_closed()
        assert (seen[0].close_code, seen[0].close_reason) == (4001, "enough")
        await finished(gateway)
    got = seen[0].request
    assert got is not None and got.path == (path if path == REALTIME else "/ws?client=7")
    assert "Authorization" not in got.headers and got.headers["X-Engine"] == "yes"
    (outcome,) = gateway.dispatcher.outcomes
    assert (outcome.how, outcome.status, outcome.usage) == ("whole", 101, None)
    assert outcome.bytes_out > 2_300 and outcome.bytes_in > 2_300, "compressed, as both sides agreed"
    assert gateway.dispatcher.tokens == [b"secret"]
    assert gateway.dispatcher.submitted[0].model == "m"


async def test_the_server_ends_it(gateway: RunningGateway) -> None:
    async def handler(session: ServerConnection) -> None:
        await session.send("bye")
        await session.close(1008, "policy")

    async with sessions(gateway, handler) as url, opened(url + REALTIME) as client:
        assert await client.recv() == "bye"
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        await finished(gateway)
    assert gateway.dispatcher.outcomes[0].how == "whole"


async def test_a_client_that_is_gone_ends_it_at_the_server(gateway: RunningGateway) -> None:
    codes: list[int | None] = []

    async def handler(session: ServerConnection) -> None:
        await session.wait_closed()
        codes.append(session.close_code)

    async with sessions(gateway, handler) as url:
        client = await opened(url + REALTIME)
        client.transport.abort()
        await finished(gateway)
    assert codes == [1006]


async def refused(url: str, **headers: str) -> int:
    with pytest.raises(InvalidStatus) as error:
        async with opened(url, **headers):
            pass
    return error.value.response.status_code


async def test_who_may_not(gateway: RunningGateway) -> None:
    gateway.dispatcher.keys = {b"good": Caller("somebody")}
    async with sessions(gateway, echo) as url:
        assert await refused(url + REALTIME) == 401
        assert await refused(url + REALTIME, Authorization="Bearer bad") == 401
        assert await refused(f"{url}/v1/realtime", Authorization="Bearer good") == 400, "no model"
        assert await refused(f"{url}/upstream//ws", Authorization="Bearer good") == 404
        gateway.dispatcher.direct_rejection = Rejection(403, "permission_denied", "Not counted.")
        assert await refused(url + REALTIME, Authorization="Bearer good") == 403
        gateway.dispatcher.direct_rejection = None
        gateway.dispatcher.rejection = Rejection(503, "queue_full", "Full.", 1.0)
        assert await refused(url + REALTIME, Authorization="Bearer good") == 503
        gateway.dispatcher.rejection = None
        async with opened(url + REALTIME, Authorization="Bearer good") as client:
            await client.send("hi")
            assert await client.recv() == "hi"


async def test_a_page_of_another_site_gets_no_session_without_a_key(gateway: RunningGateway) -> None:
    gateway.dispatcher.keys = {None: Caller()}
    async with sessions(gateway, echo) as url:
        assert await refused(url + REALTIME, Origin="https://evil.example") == 403
        assert await refused(f"{url}/upstream/m/ws", Origin="https://evil.example") == 403
        client = await gateway.client()
        await client.send(raw_handshake(b"Sec-Fetch-Site: cross-site", path=b"/upstream/m/free"))
        assert (await client.get()).status == 403
        gateway.server.origins = ("https://good.example",)
        async with opened(url + REALTIME, Origin="https://good.example") as session:
            await session.send("hi")
            assert await session.recv() == "hi"


async def test_a_server_without_websockets(gateway: RunningGateway) -> None:
    async def script(connection: EngineConnection) -> None:
        while True:
            await connection.receive()
            await connection.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope")

    gateway.engine.script = script
    client = await gateway.client()
    for _ in range(2):
        await client.send(raw_handshake(*HANDSHAKE, b"Sec-WebSocket-Key: " + KEY))
        got = await client.get()
        assert (got.status, got.body) == (404, b"nope")
    assert [each.status for each in gateway.dispatcher.outcomes] == [404, 404]


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (AGREED % b"Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n", 502),
        (AGREED % b"", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
        (b"\x81\x02hi", 502),
        (b"", 502),
    ],
)
async def test_a_server_that_agrees_to_something_else(
    gateway: RunningGateway, reply: bytes, status: int
) -> None:
    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(reply)
        connection.close()

    gateway.engine.script = script
    client = await gateway.client()
    await client.send(raw_handshake(*HANDSHAKE, b"Sec-WebSocket-Key: " + KEY))
    assert (await client.get()).status == status


async def test_101_without_a_question_is_still_an_error(gateway: RunningGateway) -> None:
    gateway.engine.script = _reply(AGREED % b"")
    client = await gateway.client()
    assert (await client.ask()).status == 502


def _reply(data: bytes) -> Callable[[EngineConnection], Awaitable[None]]:
    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(data)
        await connection.closed()

    return script


KEY_LINE = b"Sec-WebSocket-Key: " + KEY
HOSTILE = {
    "no key": (400, raw_handshake(*HANDSHAKE)),
    "a short key": (400, raw_handshake(*HANDSHAKE, b"Sec-WebSocket-Key: AAAA")),
    "a key that is no base64": (400, raw_handshake(*HANDSHAKE, b"Sec-WebSocket-Key: \xff==")),
    "two keys": (400, raw_handshake(*HANDSHAKE, KEY_LINE, KEY_LINE)),
    "an old version": (400, raw_handshake(*HANDSHAKE[:2], b"Sec-WebSocket-Version: 8", KEY_LINE)),
    "not in Connection": (400, raw_handshake(*HANDSHAKE[1:], KEY_LINE)),
    "a POST": (400, raw_handshake(*HANDSHAKE, KEY_LINE, method=b"POST")),
    "a body": (400, raw_handshake(*HANDSHAKE, KEY_LINE, b"Content-Length: 5")),
    "chunks": (400, raw_handshake(*HANDSHAKE, KEY_LINE, b"Transfer-Encoding: chunked")),
    "HTTP/1.0": (400, raw_handshake(*HANDSHAKE, KEY_LINE).replace(b"HTTP/1.1", b"HTTP/1.0")),
    "another protocol": (501, raw_handshake(b"Connection: Upgrade", b"Upgrade: h2", KEY_LINE)),
    "no upgrade": (426, raw_handshake()),
    "on the path of chat": (501, raw_handshake(*HANDSHAKE, KEY_LINE, path=b"/v1/chat/completions")),
    "on a path of nobody": (501, raw_handshake(*HANDSHAKE, KEY_LINE, path=b"/nothing")),
    "on the control side": (501, raw_handshake(*HANDSHAKE, KEY_LINE, path=b"/api/events")),
    "two models": (400, raw_handshake(*HANDSHAKE, KEY_LINE, path=b"/v1/realtime?model=a&model=b")),
    "a long name": (414, raw_handshake(*HANDSHAKE, KEY_LINE, path=b"/upstream/" + b"a" * 9000 + b"/ws")),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_handshakes(gateway: RunningGateway, name: str) -> None:
    status, data = HOSTILE[name]
    client = await gateway.client()
    await client.send(data)
    assert (await client.head()).status == status
    assert not gateway.engine.received and not gateway.dispatcher.submitted


async def test_what_a_client_sends_too_early_arrives_after_the_handshake(gateway: RunningGateway) -> None:
    got = asyncio.Event()

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(AGREED_TO_KEY + b"first")
        assert await connection.reader.readexactly(5) == b"early"
        got.set()
        await connection.closed()

    gateway.engine.script = script
    client = await gateway.client()
    await client.send(raw_handshake(*HANDSHAKE, KEY_LINE) + b"early")
    head = await client.head()
    assert head.status == 101 and head.value(b"upgrade") == b"websocket"
    assert await client.reader.readexactly(5) == b"first"
    async with asyncio.timeout(PATIENCE_S):
        await got.wait()


def with_timeouts(gateway: RunningGateway, timeouts: Timeouts) -> None:
    assert gateway.dispatcher.endpoint is not None
    gateway.dispatcher.endpoint = replace(gateway.dispatcher.endpoint, timeouts=timeouts)


async def flood(writer: asyncio.StreamWriter) -> int:
    """Send until the other side takes no more. Return how much it took."""
    sent = 0
    try:
        while sent < 200_000_000:
            writer.write(b"x" * 100_000)
            async with asyncio.timeout(1):
                await writer.drain()
            sent += 100_000
    except (TimeoutError, ConnectionError):
        pass
    return sent


async def test_a_client_cannot_fill_the_memory(gateway: RunningGateway) -> None:
    """The server reads nothing. What was read from the client waits for it, and no more is read."""

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(AGREED_TO_KEY)
        cast(asyncio.Transport, connection.writer.transport).pause_reading()
        await left.wait()

    left, gateway.engine.script = asyncio.Event(), script
    with_timeouts(gateway, Timeouts(gap_s=3))
    client = await gateway.client()
    await client.send(raw_handshake(*HANDSHAKE, KEY_LINE))
    assert (await client.head()).status == 101
    assert await flood(client.writer) < 50_000_000, "what the kernel holds, and a little more"
    client.close()
    await finished(gateway)
    assert gateway.dispatcher.outcomes[0].how == "broke", (
        "a client that nobody reads from is not seen to leave"
    )
    left.set()


async def test_a_server_cannot_fill_the_memory(gateway: RunningGateway) -> None:
    sent: list[int] = []

    async def script(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(AGREED_TO_KEY)
        sent.append(await flood(connection.writer))
        gateway.engine.changed.set()
        await connection.closed()

    gateway.engine.script = script
    client = await gateway.client()
    await client.send(raw_handshake(*HANDSHAKE, KEY_LINE))
    assert (await client.head()).status == 101
    client.deafen()
    async with asyncio.timeout(30):
        while not sent:
            gateway.engine.changed.clear()
            await gateway.engine.changed.wait()
    assert sent[0] < 50_000_000
    client.close()
    await finished(gateway)


async def idle(gateway: RunningGateway, client: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        async with asyncio.timeout(30):
            await client.recv()
    await finished(gateway)
    return client.close_code


async def test_a_silent_session_ends(gateway: RunningGateway) -> None:
    async with sessions(gateway, echo) as url:
        with_timeouts(gateway, Timeouts(gap_s=0.2))
        async with opened(url + REALTIME) as client:
            assert await idle(gateway, client) == 1001
    (outcome,) = gateway.dispatcher.outcomes
    assert outcome.how == "broke" and "gap" in outcome.why


async def test_the_gateway_ends(gateway: RunningGateway) -> None:
    async with sessions(gateway, echo) as url, opened(url + REALTIME) as client:
        await client.send("hi")
        assert await client.recv() == "hi"
        draining = asyncio.ensure_future(gateway.server.drain(60))
        assert await idle(gateway, client) == 1001
        assert await draining == 0, "nothing was cut: the session was silent"


async def test_a_revoked_key_ends_its_session(gateway: RunningGateway) -> None:
    async with sessions(gateway, echo) as url, opened(url + REALTIME) as client:
        gateway.dispatcher.submitted[0].stop(Rejection(401, "invalid_api_key", "this key was revoked."))
        assert await idle(gateway, client) == 1001
    assert gateway.dispatcher.outcomes[0].why == "this key was revoked."


async def test_a_server_that_says_nothing_to_the_handshake(gateway: RunningGateway) -> None:
    async with sessions(gateway, echo) as url:
        assert gateway.dispatcher.endpoint is not None
        gateway.dispatcher.endpoint = replace(
            gateway.dispatcher.endpoint,
            address=("127.0.0.1", gateway.engine.port),
            timeouts=Timeouts(first_byte_s=0.2),
        )
        gateway.engine.script = _reply(b"")
        assert await refused(url + REALTIME) == 504


async def test_paths_of_a_server(gateway: RunningGateway) -> None:
    """As ComfyUI has them: /prompt, /history/ID, /view?filename=..."""
    assert gateway.dispatcher.endpoint is not None
    gateway.dispatcher.endpoint = replace(
        gateway.dispatcher.endpoint, served_name=b"another", speaks=("messages",)
    )

    async def script(connection: EngineConnection) -> None:
        while True:
            await connection.receive()
            await connection.send(answer(b"\x89PNG", b"Content-Type: image/png"))

    gateway.engine.script = script
    client = await gateway.client()
    body = b'{"model": "m", "stream": true, "prompt": {"3": {"class_type": "KSampler"}}}'
    got = await client.ask(body, path=b"/upstream/m/prompt")
    assert (got.status, got.body, got.value(b"content-type")) == (200, b"\x89PNG", b"image/png")
    for method, path in (
        (b"GET", b"/view?filename=a%20b.png&type=output"), (b"DELETE", b"/queue/7"), (b"PUT", b"/"),
        (b"GET", b"/upstream/m/x"),
    ):  # fmt: skip
        await client.send(request(b"", path=b"/upstream/a%2Fm" + path, method=method))
        assert (await client.get()).status == 200
    await client.send(request(b"", path=b"/upstream/m/object_info", method=b"HEAD"))
    assert (await client.get(is_head=True)).status == 200
    assert [received.head.split(b" HTTP")[0] for received in gateway.engine.received] == [
        b"POST /prompt", b"GET /view?filename=a%20b.png&type=output", b"DELETE /queue/7", b"PUT /",
        b"GET /upstream/m/x", b"HEAD /object_info",
    ]  # fmt: skip
    assert gateway.engine.received[0].body == body, "nothing was edited"
    assert [each.model for each in gateway.dispatcher.submitted] == ["m", *["a/m"] * 4, "m"]
    for path in (b"/upstream/m", b"/upstream/", b"/upstream/%ff/x"):
        assert (await client.ask(path=path)).status == 404
