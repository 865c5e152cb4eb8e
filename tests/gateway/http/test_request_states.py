"""Every state of a request with every event, and the judgement of an engine's errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, cast

import pytest

from firesteel.gateway.http.attempt import Attempt, Judgement, Reshape, Retry, judge
from firesteel.gateway.http.body_edits import UsageRequest
from firesteel.gateway.http.request import RequestState
from firesteel.gateway.http.request_body import EndpointBody
from firesteel.gateway.interfaces import Endpoint, Rejection
from tests.gateway.http.kit import DONE as STREAM_END
from tests.gateway.http.kit import STREAM, STREAMING, answer, event, request
from tests.gateway.http.request_world import ADDRESS, FakeTransport, World
from tests.gateway.http.test_direct import AGREED_TO_KEY, HANDSHAKE, KEY, REALTIME, raw_handshake

S = RequestState
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
TOO_LONG = b'{"error":"maximum context length is 8"}'
MESSAGES = {"speaks": ("messages",)}


def waiting(world: World) -> None:
    world.send(request(STREAMING))


def connecting(world: World) -> None:
    waiting(world)
    world.grant()


def sent(world: World) -> None:
    waiting(world)
    world.grant(pooled=True)


def keeping(world: World) -> None:
    world.send(request())
    world.grant(pooled=True)
    world.engine_sends(answer(TOO_LONG, status=b"400 Bad Request")[:-1])


def collecting(world: World) -> None:
    world.send(request(b'{"model":"m","messages":[]}'))
    world.grant(pooled=True, **MESSAGES)
    world.engine_sends(JSON_HEAD)


def answering(world: World) -> None:
    sent(world)
    world.engine_sends(STREAM + event("a"))


def tunneling(world: World) -> None:
    world.send(raw_handshake(*HANDSHAKE, b"Sec-WebSocket-Key: " + KEY, path=REALTIME.encode()))
    world.grant(pooled=True)
    world.engine_sends(AGREED_TO_KEY)


def draining(world: World) -> None:
    waiting(world)
    world.grant(pooled=True, policy="drain")
    world.engine_sends(STREAM + event("a"))
    world.client_leaves()


def done(world: World) -> None:
    sent(world)
    world.engine_sends(answer(b"{}"))


STATES: dict[RequestState, Callable[[World], None]] = {
    S.WAITING: waiting,
    S.CONNECTING: connecting,
    S.SENT: sent,
    S.KEEPING: keeping,
    S.COLLECTING: collecting,
    S.ANSWERING: answering,
    S.TUNNELING: tunneling,
    S.DRAINING: draining,
    S.DONE: done,
}

# Events of the dispatcher and of the client can come at any time; those of the pool and of the engine only
# while a connection is opened or used, which `World` checks.
ENDPOINT = Endpoint("m", ADDRESS)
ANY_TIME: dict[str, Callable[[World], object]] = {
    "granted": lambda world: world.grant() if world.waiting else world.request.granted(ENDPOINT, None),
    "granted, pooled": lambda world: (
        world.grant(pooled=True) if world.waiting else world.request.granted(ENDPOINT, None)
    ),
    "rejected": lambda world: (
        world.reject() if world.waiting else world.request.rejected(Rejection(503, "queue_full", "Full."))
    ),
    "wait status": lambda world: world.wait_status(),
    "falls back": lambda world: world.request.falls_back("m", "other", "down"),
    "stop": lambda world: world.request.stop(),
    "client leaves": lambda world: world.client_leaves(),
    "client half closes": lambda world: world.client_half_closes(),
    "client is slow": lambda world: world.request.pause(),
    "client reads on": lambda world: world.request.resume(),
    "client sends": lambda world: world.request.client_sent(b"more"),
    "tick": lambda world: world.tick(2.0),
    "silence": lambda world: world.tick(1000.0),
}


def held(happens: Callable[[World], None]) -> Callable[[World], None]:
    """The dispatcher has the request wait, or tried elsewhere, wherever it is asked."""

    def event(world: World) -> None:
        world.may_hold = world.may_retry = True
        happens(world)

    return event


def engine_says(data: bytes) -> Callable[[World], None]:
    return lambda world: world.engine_sends(data)


OF_THE_POOL: dict[str, Callable[[World], object]] = {
    "connected": World.connected,
    "unreachable": World.unreachable,
    "unreachable, held": held(World.unreachable),
}
OF_THE_ENGINE: dict[str, Callable[[World], object]] = {
    "bytes": engine_says(event("b")),
    "head": engine_says(JSON_HEAD),
    "stream": engine_says(STREAM),
    "answer": engine_says(answer(b"{}")),
    "end": engine_says(STREAM_END),
    "error 503": engine_says(answer(b"{}", status=b"503 Busy")),
    "error 503, retried": held(engine_says(answer(b"{}", status=b"503 Busy"))),
    "error 400": engine_says(answer(b"{}", status=b"400 Bad Request")),
    "closes": World.engine_closes,
    "closes, held": held(World.engine_closes),
}
EVENTS = ANY_TIME | OF_THE_POOL | OF_THE_ENGINE

NEXT: dict[RequestState, dict[str, RequestState]] = {
    S.WAITING: {
        "granted": S.CONNECTING,
        "granted, pooled": S.SENT,
        "rejected": S.DONE,
        "stop": S.DONE,
        "client leaves": S.DONE,
    },
    S.CONNECTING: {
        "connected": S.SENT,
        "unreachable": S.DONE,
        "unreachable, held": S.WAITING,
        "stop": S.DONE,
        "client leaves": S.DONE,
        "silence": S.DONE,
    },
    S.SENT: {
        "head": S.ANSWERING,
        "stream": S.ANSWERING,
        "answer": S.DONE,
        "error 503": S.DONE,
        "error 503, retried": S.WAITING,
        "error 400": S.CONNECTING,
        "closes": S.CONNECTING,
        "closes, held": S.CONNECTING,
        "end": S.DONE,
        "stop": S.DONE,
        "client leaves": S.DONE,
        "silence": S.DONE,
    },
    S.KEEPING: {
        "bytes": S.DONE,
        "head": S.DONE,
        "stream": S.DONE,
        "answer": S.DONE,
        "end": S.DONE,
        "error 503": S.DONE,
        "error 503, retried": S.WAITING,
        "error 400": S.DONE,
        "closes": S.DONE,
        "closes, held": S.WAITING,
        "stop": S.DONE,
        "client leaves": S.DRAINING,
        "client half closes": S.DRAINING,
        "silence": S.DONE,
    },
    S.COLLECTING: {
        "bytes": S.DONE,
        "head": S.DONE,
        "stream": S.DONE,
        "answer": S.DONE,
        "end": S.DONE,
        "error 503": S.DONE,
        "error 503, retried": S.DONE,
        "error 400": S.DONE,
        "closes": S.DONE,
        "closes, held": S.WAITING,
        "stop": S.DONE,
        "client leaves": S.DRAINING,
        "client half closes": S.DRAINING,
        "silence": S.DONE,
    },
    S.ANSWERING: {
        "end": S.DONE,
        "head": S.DONE,
        "stream": S.DONE,
        "answer": S.DONE,
        "error 503": S.DONE,
        "error 503, retried": S.DONE,
        "error 400": S.DONE,
        "closes": S.DONE,
        "closes, held": S.DONE,
        "stop": S.DONE,
        "client leaves": S.DONE,
        "silence": S.DONE,
    },
    S.TUNNELING: {
        "closes": S.DONE,
        "closes, held": S.DONE,
        "stop": S.DONE,
        "client leaves": S.DONE,
        "client half closes": S.DONE,
        "silence": S.DONE,
    },
    S.DRAINING: {
        "end": S.DONE,
        "head": S.DONE,
        "stream": S.DONE,
        "answer": S.DONE,
        "error 503": S.DONE,
        "error 503, retried": S.DONE,
        "error 400": S.DONE,
        "closes": S.DONE,
        "closes, held": S.DONE,
        "silence": S.DONE,
    },
    S.DONE: {},
}
"""Anything else leaves the state as it is. Within an answer, a head is only bytes that break its framing."""


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.value)
def test_every_state_with_every_event(state: RequestState, name: str) -> None:
    asyncio.run(with_event(state, name))


async def with_event(state: RequestState, name: str) -> None:
    world = World()
    STATES[state](world)
    assert world.state() is state
    if (name in OF_THE_POOL and not world.is_connecting()) or (
        name in OF_THE_ENGINE and world.upstream() is None
    ):
        assert name not in NEXT[state], "nobody is there who could cause it"
    else:
        EVENTS[name](world)
        assert world.state() is NEXT[state].get(name, state)
    world.end()


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.value)
async def test_the_pool_and_the_engine_are_called_back_only_in_their_states(state: RequestState) -> None:
    world = World()
    STATES[state](world)
    assert world.is_connecting() == (state is S.CONNECTING)
    assert (world.upstream() is not None) == (
        state in (S.SENT, S.KEEPING, S.COLLECTING, S.ANSWERING, S.TUNNELING, S.DRAINING)
    )
    world.end()


async def test_a_request_to_the_gateway_itself_is_never_submitted() -> None:
    world = World()
    world.send(request(b"", path=b"/api/state", method=b"GET"))
    admin = world.client._request
    assert admin is not None
    assert admin.state is S.CONNECTING
    assert admin.tick(inf) == inf, "its own deadlines are enough"
    world.connected()
    world.engine_sends(answer(b"{}", status=b"503 Busy"))
    assert admin.is_done() and b"503 Busy" in world.transport.written
    assert not world.submitted and not world.outcomes
    world.end()


async def test_a_websocket_does_not_begin_within_a_stream() -> None:
    """A server answers a handshake with a stream, breaks, and agrees when it is asked again."""
    world = World()
    world.may_hold = True
    world.send(raw_handshake(*HANDSHAKE, b"Sec-WebSocket-Key: " + KEY, path=REALTIME.encode()))
    world.grant(pooled=True)
    world.engine_sends(STREAM)
    world.engine_closes()
    assert world.state() is S.WAITING
    world.grant(pooled=True)
    world.may_hold = False
    world.engine_sends(AGREED_TO_KEY)
    assert world.state() is S.DONE and b"Switching" not in world.transport.written
    world.end()


async def test_only_the_server_that_rejected_token_counts_is_not_asked_for_them() -> None:
    """A second replica was remembered in its place, and never asked again."""
    world = World()
    world.may_retry = True
    sent(world)
    world.engine_sends(answer(b"{}", status=b"422 No"))
    world.connected()
    world.engine_sends(answer(b"{}", status=b"503 Busy"))
    world.grant(pooled=True, address=("127.0.0.1", 10))
    upstream = world.upstream()
    assert upstream is not None
    assert b"stream_options" in cast(FakeTransport, upstream.transport).written
    world.engine_sends(STREAM + event("a"))
    assert not world.pool.unasked
    world.end()


def attempt(**changes: Any) -> Attempt:
    usage = changes.pop("usage", None)
    shape = changes.pop("shape", None)
    found = Attempt(Endpoint("m", ADDRESS, **changes), None, EndpointBody(usage=usage))
    found.shape = shape
    return found


REFUSED = b"System message must be at the beginning."
NO_SYSTEM = b"System role not supported"
USAGE = UsageRequest((0, 0, b""), True, False)
JUDGED = [
    ("passed on", 404, None, {}, True, Judgement.PASS_ON),
    ("busy", 429, None, {}, True, Retry("full")),
    ("down", 503, None, {}, True, Retry("down")),
    ("down, but the client has a part", 503, None, {}, False, Judgement.PASS_ON),
    ("an unknown field", 422, None, {"usage": USAGE}, True, Judgement.ASK_AGAIN),
    ("an unknown field, comments sent", 400, None, {"usage": USAGE}, False, Judgement.ASK_AGAIN),
    ("a field that it knows", 400, None, {"usage": USAGE, "counting": "timings"}, True, Judgement.KEEP),
    ("maybe too long", 400, None, {}, True, Judgement.KEEP),
    (
        "asked again before it is kept",
        400,
        None,
        {"usage": USAGE},
        True,
        Judgement.ASK_AGAIN,
    ),
    ("maybe too long, but the client has a part", 400, None, {}, False, Judgement.PASS_ON),
    ("too long", 400, TOO_LONG, {}, True, Retry("too_long")),
    ("too long, but the client has a part", 400, TOO_LONG, {}, False, Judgement.PASS_ON),
    ("not too long", 400, b"temperature", {}, True, Judgement.PASS_ON),
    ("a shape that the template refuses", 400, REFUSED, {}, True, Reshape("first")),
    ("refused again", 400, REFUSED, {"shape": "first"}, True, Judgement.PASS_ON),
    ("no system role", 400, NO_SYSTEM, {"shape": "first"}, True, Reshape("none")),
    ("no system role, again", 400, NO_SYSTEM, {"shape": "none"}, True, Judgement.PASS_ON),
    ("refused, but the client has a part", 400, REFUSED, {}, False, Judgement.PASS_ON),
]


@pytest.mark.parametrize(
    ("status", "body", "changes", "nothing_sent", "judgement"),
    [pytest.param(*row[1:], id=row[0]) for row in JUDGED],
)
def test_judge(
    status: int,
    body: bytes | None,
    changes: dict[str, Any],
    nothing_sent: bool,
    judgement: Judgement | Retry | Reshape,
) -> None:
    assert judge(status, body, attempt(**changes), nothing_sent=nothing_sent) == judgement
