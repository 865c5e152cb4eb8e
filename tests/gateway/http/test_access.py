"""What a browser would send for pages of others is refused, unless CORS allows it; what a program sends is
not (https://fetch.spec.whatwg.org/#http-cors-protocol).
"""

from __future__ import annotations

import pytest

from firesteel.gateway.http.access import is_plain_host, reject_foreign_page
from firesteel.gateway.interfaces import Caller, GatewayResponse, Rejection
from tests.gateway.http.kit import (
    DONE,
    STREAM,
    STREAMING,
    ClientResponse,
    EngineConnection,
    RunningGateway,
    answer,
    event,
    request,
)


@pytest.mark.parametrize(
    ("host", "is_plain"),
    [
        ("127.0.0.1:8080", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("192.168.1.9:80", True),
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("localhost.:8080", True),
        ("app.localhost:8080", True),
        ("evil.example:8080", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1@evil.example", False),
        ("evil.example#localhost", False),
        ("evil.example/localhost", False),
        ("[::1].evil.example", False),
        ("notlocalhost", False),
        ("[::1", False),
        ("localhost:999999", False),
        ("::1", False),
        ("", False),
    ],
)
def test_names_that_cannot_be_rebound(host: str, is_plain: bool) -> None:
    assert is_plain_host(host) == is_plain
    for method in ("GET", "POST"):
        refusal = reject_foreign_page(method, host, None, None, has_keys=False)
        assert (refusal is None) == is_plain
        assert reject_foreign_page(method, host, None, None, has_keys=True) is None


@pytest.mark.parametrize(
    ("origin", "host", "is_ours"),
    [
        (None, "127.0.0.1:8080", True),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ("http://localhost:8080", "LOCALHOST:8080", True),
        ("http://spark", "spark", True),
        ("http://spark:80", "spark", True),
        ("https://spark", "spark:443", True),
        ("https://spark", "spark", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("http://127.0.0.1:3000", "127.0.0.1:8080", False),
        ("http://localhost:8080", "127.0.0.1:8080", False),
        ("http://evil.example", "127.0.0.1:8080", False),
        ("http://spark:81", "spark", False),
        ("https://spark", "spark:80", False),
        ("null", "127.0.0.1:8080", False),
        ("", "127.0.0.1:8080", False),
        ("http://127.0.0.1:8080@evil.example", "127.0.0.1:8080", False),
        ("http://127.0.0.1:8080/x", "127.0.0.1:8080", False),
        ("file://", "127.0.0.1:8080", False),
        ("chrome-extension://abc", "abc", False),
        ("http://[", "127.0.0.1", False),
    ],
)
def test_only_a_page_of_our_own_changes_anything(origin: str | None, host: str, is_ours: bool) -> None:
    for has_keys in (True, False) if is_plain_host(host) else (True,):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            refusal = reject_foreign_page(method, host, origin, None, has_keys=has_keys)
            assert (refusal is None) == is_ours
        assert reject_foreign_page("GET", host, origin, None, has_keys=has_keys) is None


def test_a_browser_that_says_cross_site_is_believed() -> None:
    refusal = reject_foreign_page("POST", "127.0.0.1", None, "cross-site", has_keys=True)
    assert refusal is not None and (refusal.status, refusal.kind) == (403, "origin_not_allowed")
    assert reject_foreign_page("POST", "127.0.0.1", None, "same-origin", has_keys=True) is None


PAGE = b"http://localhost:3000"
ORIGIN = b"Origin: " + PAGE
FOREIGN = b"Origin: https://evil.example"
ALLOW = b"access-control-allow-origin"
CHAT = b"/v1/chat/completions"


def preflight(origin: bytes = ORIGIN, path: bytes = CHAT, *lines: bytes) -> bytes:
    asks = (b"Access-Control-Request-Method: POST", b"Access-Control-Request-Headers: authorization, x-a")
    head = b"\r\n".join((b"OPTIONS %b HTTP/1.1" % path, b"Host: 127.0.0.1", origin, *asks, *lines))
    return head + b"\r\n\r\n"


def needs_key(gateway: RunningGateway) -> None:
    gateway.dispatcher.keys = {b"k": Caller("laptop")}


def allowed(response: ClientResponse) -> list[bytes]:
    return [line for line in response.lines if line.lower().startswith(ALLOW)]


async def test_a_preflight_needs_no_key(gateway: RunningGateway) -> None:
    needs_key(gateway)
    gateway.server.origins = ("loopback",)
    client = await gateway.client()
    await client.send(preflight(ORIGIN, CHAT, b"Access-Control-Request-Private-Network: true"))
    got = await client.get()
    assert got.status == 200 and got.body == b""
    assert got.value(ALLOW) == PAGE and got.value(b"vary") == b"Origin"
    assert got.value(b"access-control-allow-headers") == b"authorization, x-a"
    assert got.value(b"access-control-allow-methods") == b"GET, POST, OPTIONS"
    assert got.value(b"access-control-allow-private-network") == b"true"
    assert not gateway.dispatcher.tokens and not gateway.dispatcher.submitted
    # The same connection serves the request itself, which needs the key.
    got = await client.ask(b'{"model":"m"}', ORIGIN)
    assert got.status == 401 and got.value(ALLOW) == PAGE
    got = await client.ask(b'{"model":"m"}', ORIGIN, b"Authorization: Bearer k")
    assert got.status == 200 and allowed(got) == [b"Access-Control-Allow-Origin: " + PAGE]
    # A program without an origin on the same connection gets none of it.
    got = await client.ask(b'{"model":"m"}', b"Authorization: Bearer k")
    assert got.status == 200 and not allowed(got)


@pytest.mark.parametrize("origin", [FOREIGN, b"Origin: null", b"Origin: http://localhost:3000.evil.example"])
async def test_another_page_is_refused(gateway: RunningGateway, origin: bytes) -> None:
    gateway.server.origins = ("loopback",)
    client = await gateway.client()
    await client.send(preflight(origin))
    got = await client.get()
    assert got.status == 403 and not allowed(got) and b"cors: [" in got.body


async def test_off_is_as_before(gateway: RunningGateway) -> None:
    needs_key(gateway)
    client = await gateway.client()
    await client.send(preflight())
    got = await client.get()
    assert got.status == 401 and not allowed(got)
    got = await client.ask(b'{"model":"m"}', ORIGIN, b"Authorization: Bearer k")
    assert got.status == 200 and not allowed(got)


@pytest.mark.parametrize("path", [b"/api/state", b"/metrics", b"/api/models/m/unload", b"/", b"/api/events"])
async def test_the_admin_api_is_closed_to_every_page(gateway: RunningGateway, path: bytes) -> None:
    needs_key(gateway)
    gateway.server.origins = ("any",)
    gateway.dispatcher.local_targets[path] = GatewayResponse(200, b"{}")
    client = await gateway.client()
    await client.send(preflight(ORIGIN, path))
    got = await client.get()
    assert got.status == 403 and not allowed(got)
    client = await gateway.client()
    got = await client.ask(b"", ORIGIN, b"Authorization: Bearer k", path=path)
    assert not allowed(got)


async def test_a_page_reads_models_errors_and_streams(gateway: RunningGateway) -> None:
    gateway.server.origins = (PAGE.decode(),)
    gateway.dispatcher.local_targets[b"/v1/models"] = GatewayResponse(200, b"[]")
    client = await gateway.client()
    await client.send(request(b"", ORIGIN, path=b"/v1/models", method=b"GET"))
    assert allowed(await client.get())
    gateway.dispatcher.rejection = Rejection(404, "unknown_model", "no")
    assert allowed(await client.ask(b'{"model":"m"}', ORIGIN))
    gateway.dispatcher.rejection = None

    async def stream(connection: EngineConnection) -> None:
        await connection.receive()
        await connection.send(STREAM + event("a") + DONE)

    gateway.engine.script = stream
    got = await client.ask(STREAMING, ORIGIN)
    assert got.status == 200 and len(allowed(got)) == 1 and b"[DONE]" in got.body


async def test_a_page_reads_while_its_model_loads(gateway: RunningGateway) -> None:
    gateway.server.origins = (PAGE.decode(),)
    gateway.dispatcher.holds_requests = True
    client = await gateway.client()
    await client.send(request(STREAMING, ORIGIN))
    head = await client.head()
    assert head.status == 200 and len(allowed(head)) == 1
    gateway.dispatcher.abandoned.clear()


async def test_what_the_engine_allows_does_not_count(gateway: RunningGateway) -> None:
    """vLLM and llama.cpp let every page read their answers."""

    async def permissive(connection: EngineConnection) -> None:
        while True:
            await connection.receive()
            await connection.send(
                answer(b"{}", b"Access-Control-Allow-Origin: *", b"access-control-allow-credentials: true")
            )

    gateway.engine.script = permissive
    client = await gateway.client()
    assert b"access-control" not in (await client.ask(b'{"model":"m"}', FOREIGN)).raw.lower()
    gateway.server.origins = ("loopback",)
    got = await client.ask(b'{"model":"m"}', ORIGIN)
    assert allowed(got) == [b"Access-Control-Allow-Origin: " + PAGE]
    assert b"credentials" not in got.raw.lower()


async def test_without_keys_only_allowed_pages_may_send(gateway: RunningGateway) -> None:
    gateway.dispatcher.keys = {None: Caller()}
    lines = (b"Sec-Fetch-Site: cross-site",)

    async def ask(*more: bytes, host: bytes = b"127.0.0.1") -> int:
        client = await gateway.client()
        await client.send(
            request(b'{"model":"m"}', *lines, *more).replace(b"Host: gateway", b"Host: " + host)
        )
        return (await client.get()).status

    assert await ask(ORIGIN) == 403
    gateway.server.origins = ("loopback",)
    assert await ask(ORIGIN) == 200
    assert await ask(FOREIGN) == 403
    assert await ask(ORIGIN, host=b"rebound.example") == 403


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((b"Origin: " + PAGE, b"Origin: " + PAGE), 403),
        ((b"Origin: " + b"http://localhost" * 500,), 403),
        ((b"Origin: http://localhost:99999999",), 403),
        ((ORIGIN, b"Access-Control-Request-Headers: " + b"x-a," * 6000), 200),
        ((ORIGIN, *(b"X-Header-%d: x" % number for number in range(200))), 431),
        ((ORIGIN, b"Access-Control-Request-Headers: " + b"x" * 40_000), 431),
    ],
)
async def test_hostile_preflights(gateway: RunningGateway, lines: tuple[bytes, ...], status: int) -> None:
    """Answered from the head alone, within its limits; no key is looked at, and no engine is asked."""
    gateway.server.origins = ("loopback",)
    client = await gateway.client()
    await client.send(preflight(*lines[:1], CHAT, *lines[1:]))
    got = await client.get()
    assert got.status == status and len(got.raw) < 40_000
    assert not gateway.dispatcher.tokens and not gateway.engine.received


async def test_a_preflight_with_a_body_that_never_comes(gateway: RunningGateway) -> None:
    gateway.server.origins = ("loopback",)
    client = await gateway.client()
    await client.send(preflight(ORIGIN, CHAT, b"Content-Length: 60000000"))
    assert (await client.get()).status == 200, "without waiting for it"
    assert await client.is_closed()
