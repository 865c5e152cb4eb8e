"""A gateway of aiohttp's server and client on uvloop, as a careful person would write it in an hour.

python main.py PORT UPSTREAM_PORT KEY
"""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

HOP = {"content-length", "transfer-encoding", "connection", "keep-alive", "host", "authorization"}
SESSION = web.AppKey("session", aiohttp.ClientSession)


class Gateway:
    def __init__(self, upstream_port: int, key: str) -> None:
        self.key = f"Bearer {key}".encode()
        self.models = {"bench": f"http://127.0.0.1:{upstream_port}"}

    async def session(self, app: web.Application) -> AsyncIterator[None]:
        forever = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        app[SESSION] = aiohttp.ClientSession(connector=connector, timeout=forever, auto_decompress=False)
        yield
        await app[SESSION].close()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), self.key):
            raise web.HTTPUnauthorized
        body = await request.read()
        base = self.models.get(json.loads(body).get("model"))
        if base is None:
            raise web.HTTPNotFound
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        async with request.app[SESSION].post(base + request.path_qs, data=body, headers=headers) as upstream:
            return await self.forward(request, upstream)

    async def forward(self, request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        forwarded = {name: value for name, value in upstream.headers.items() if name.lower() not in HOP}
        if upstream.content_length is not None:
            return web.Response(status=upstream.status, body=await upstream.read(), headers=forwarded)
        response = web.StreamResponse(status=upstream.status, headers=forwarded)
        await response.prepare(request)
        async for piece in upstream.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response


def main(port: int, upstream_port: int, key: str) -> None:
    gateway, app = Gateway(upstream_port, key), web.Application(client_max_size=64 << 20)
    app.cleanup_ctx.append(gateway.session)
    app.router.add_route("POST", "/{path:.*}", gateway.answer)
    loop = uvloop.new_event_loop()
    web.run_app(
        app, host="127.0.0.1", port=port, access_log=None, handler_cancellation=True, print=None, loop=loop
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
