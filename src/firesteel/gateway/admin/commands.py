"""What only the planner, the rules and the history of runs know, for the page: answered by commands.

    GET  /api/catalog?goal=&context=&users=      `firesteel models`
    GET  /api/plan?model=&context=&users=        `firesteel plan MODEL`
    POST /api/check                              `firesteel check -`, the body is the text
    GET  /api/models/NAME/diagnose               `firesteel logs NAME --why`
    GET  /api/runs                               `firesteel bench list`
    GET  /api/runs/RUN                           `firesteel bench show RUN`
    GET  /api/runs/RUN/plan                      `firesteel bench compare RUN --plan`
    GET  /api/compare?first=&second=             `firesteel bench compare RUN RUN`

The gateway's process loads none of this (see DESIGN.md), so each is a child process that prints the
document of its `--json`. The caller passes in how to start one; the list of commands is closed, and a value
from a client is only ever one argument after `--`, or of an option that this module names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from firesteel.gateway.interfaces import AdminRejected, Rejection

CommandRunner = Callable[[Sequence[str], bytes], Awaitable[bytes]]
"""Runs `firesteel ARGUMENTS` with this standard input; its standard output."""
MAX_TEXT_BYTES = 256 * 2**10
_AT_ONCE = 2
_MAX_WAITING = 16
_TIMEOUT_S = 60.0
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}", re.ASCII)
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127})?", re.ASCII)
"""A name of the catalog or an id of the Hub; not a path of this machine."""
_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_WORD = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)


def command_routes(run: CommandRunner, model_name: Callable[[web.Request], str]) -> list[web.RouteDef]:
    """`model_name` checks the `{name}` of a path."""
    commands = _Commands(run, model_name)
    return [
        web.get("/api/catalog", commands.catalog),
        web.get("/api/plan", commands.plan),
        web.post("/api/check", commands.check),
        web.get("/api/models/{name}/diagnose", commands.diagnose),
        web.get("/api/runs", commands.runs),
        web.get("/api/runs/{run}", commands.show),
        web.get("/api/runs/{run}/plan", commands.against_plan),
        web.get("/api/compare", commands.compare),
    ]


class _Commands:
    def __init__(self, run: CommandRunner, model_name: Callable[[web.Request], str]) -> None:
        self._run, self._model_name = run, model_name
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def catalog(self, request: web.Request) -> web.Response:
        return await self._answer("models", *_options(request, goal=_WORD, context=_NUMBER, users=_NUMBER))

    async def plan(self, request: web.Request) -> web.Response:
        options = _options(request, context=_NUMBER, users=_NUMBER, engine=_WORD)
        return await self._answer("plan", *options, "--", _query(request, "model", _MODEL))

    async def check(self, request: web.Request) -> web.Response:
        return await self._answer("check", "-", text=await request.read())

    async def diagnose(self, request: web.Request) -> web.Response:
        return await self._answer("logs", "--why", "--", self._model_name(request))

    async def runs(self, request: web.Request) -> web.Response:
        return await self._answer("bench", "list")

    async def show(self, request: web.Request) -> web.Response:
        return await self._answer("bench", "show", "--", _matched("run", request.match_info["run"], _RUN))

    async def against_plan(self, request: web.Request) -> web.Response:
        run = _matched("run", request.match_info["run"], _RUN)
        return await self._answer("bench", "compare", "--plan", "--", run)

    async def compare(self, request: web.Request) -> web.Response:
        first, second = _query(request, "first", _RUN), _query(request, "second", _RUN)
        return await self._answer("bench", "compare", "--", first, second)

    async def _answer(self, *arguments: str, text: bytes = b"") -> web.Response:
        if self._waiting >= _MAX_WAITING:
            raise AdminRejected(Rejection(503, "busy", "too many plans are under way. Try again.", 2.0))
        self._waiting += 1
        try:
            async with self._slots, asyncio.timeout(_TIMEOUT_S):
                output = await self._run(("--json", *arguments), text)
        except TimeoutError:
            why = f"`firesteel {arguments[0]}` took longer than {_TIMEOUT_S:.0f} s."
            raise AdminRejected(Rejection(504, "timeout", why)) from None
        finally:
            self._waiting -= 1
        if not output.lstrip().startswith(b"{"):
            raise AdminRejected(Rejection(502, "failed", f"`firesteel {arguments[0]}` printed no document."))
        headers = {"Cache-Control": "no-store"}
        return web.Response(body=output, content_type="application/json", headers=headers)


def _options(request: web.Request, **patterns: re.Pattern[str]) -> list[str]:
    """`--NAME=VALUE` for each of these parameters that the query has."""
    given = {name: request.query[name] for name in patterns if request.query.get(name)}
    return [f"--{name}={_matched(name, value, patterns[name])}" for name, value in given.items()]


def _query(request: web.Request, name: str, pattern: re.Pattern[str]) -> str:
    return _matched(name, request.query.get(name, ""), pattern)


def _matched(name: str, value: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(value):
        raise AdminRejected(
            Rejection(400, "bad_request", f"`{name}` is missing, or not one that can be used.")
        )
    return value
