"""Starts Debian's Firefox for Playwright, and answers the one command of its protocol that it does not know.

Playwright speaks WebDriver BiDi with a Firefox as Debian ships it, and sets the colour scheme of every new
context, for which Firefox 153 has no command. So this stands between the two: it is started in place of
Firefox, passes all messages on, and says "done" to that one.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

from aiohttp import ClientSession, WSMsgType, web

PROGRAM = "/usr/bin/firefox-esr"
UNKNOWN = "emulation.setMediaFeaturesOverride"
LISTENING = re.compile(rb"WebDriver BiDi listening on (ws://\S+)")


async def main(arguments: list[str]) -> int:
    firefox = await asyncio.create_subprocess_exec(PROGRAM, *arguments, stderr=asyncio.subprocess.PIPE)
    assert firefox.stderr
    while not (found := LISTENING.search(line := await firefox.stderr.readline())):
        sys.stderr.buffer.write(line)
        if not line:
            return await firefox.wait()
    address = found[1].decode()

    async def serve(request: web.Request) -> web.WebSocketResponse:
        client = web.WebSocketResponse(max_msg_size=0)
        await client.prepare(request)
        url = f"{address}{request.path}"
        async with ClientSession() as session, session.ws_connect(url, max_msg_size=0) as browser:

            async def pass_answers_on() -> None:
                async for message in browser:
                    if message.type == WSMsgType.TEXT:
                        await client.send_str(message.data)
                await client.close()

            answers = asyncio.create_task(pass_answers_on())
            async for message in client:
                command = json.loads(message.data)
                if command["method"] == UNKNOWN:
                    await client.send_json({"type": "success", "id": command["id"], "result": {}})
                else:
                    await browser.send_str(message.data)
            answers.cancel()
        return client

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stderr.write(f"WebDriver BiDi listening on ws://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stderr.flush()
    while line := await firefox.stderr.readline():
        sys.stderr.buffer.write(line)
    return await firefox.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
