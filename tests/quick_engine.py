"""The embedded engine without its arithmetic, for tests of processes: who is stopped, killed, found again.

    [HOLDS_MIB=300] python quick_engine.py SERVER.py --model FILE --port PORT --ctx-size N ...

It prints the start-up log of the real one, phase by phase, and serves what the simulated engine says, token
by token. A proof of its answers takes no CPU time to speak of, and that of the real engine's a quarter of a
minute. `scripts/test-slow` runs the same tests with the real engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path

from aiohttp import web

from firesteel.edge.sim.batch import Batch, EngineSpeed
from firesteel.edge.sim.server import SimServer

LOG = Path(__file__).parent / "engines" / "logs" / "llamacpp-11549.log"
PHASES = ("load_tensors: loading", "llama_kv_cache: size", "warming up the model", "listening on")
PHASE_S = 0.1
"""`up` reads the log as it grows, and tests wait for what it says of each phase."""
TOKENS_PER_S = 300


def speed(context: int, users: int) -> EngineSpeed:
    return EngineSpeed(
        step_ms=[(1, 1000 / TOKENS_PER_S)], depths=[(0, 1.0)], prefill_tokens_per_s=20_000,
        batched_tokens=512, users=users, context=context, pool_tokens=context * users,
        pool_blocks=context * users, concurrency=users, drafts=0,
        acceptance={}, draft_cost=0, jitter=0, seed=1, caches_prefixes=False,
    )  # fmt: skip


class QuickServer(SimServer):
    """A simulated engine has no probabilities; what asks for them gets some."""

    async def _answer(self, request: web.Request, *, is_chat: bool) -> web.StreamResponse:
        body = await request.json()
        if not isinstance(body, dict) or not body.pop("logprobs", False):
            return await super()._answer(request, is_chat=is_chat)
        request._read_bytes = json.dumps(body).encode()
        response = await super()._answer(request, is_chat=is_chat)
        if not isinstance(response, web.Response):
            return response
        answer = json.loads(response.text or "{}")
        (choice,) = answer["choices"]
        text = choice["message"]["content"] if is_chat else choice["text"]
        pieces = [piece.group() for piece in re.finditer(r"\s*\S+", text or "")]
        tokens = [{"token": piece, "logprob": -1.0, "top_logprobs": []} for piece in pieces]
        choice["logprobs"] = {"content": tokens}
        return web.json_response(answer)


async def serve(arguments: list[str]) -> None:
    held = b"x" * (int(os.environ.get("HOLDS_MIB", "0")) << 20)  # for tests in which two do not fit
    given = dict(pairwise(arguments))
    port, users = int(given["--port"]), int(given.get("--parallel", 1))
    config = {
        "engine": "llamacpp", "served": given.get("--alias", "smollm2"), "model": given["--model"],
        "version": "11549", "metrics": True, "thinks": False, "calls_tools": False,
    }  # fmt: skip
    batch = Batch(speed(int(given["--ctx-size"]) // users, users))
    server = QuickServer(config, batch, {}, None)
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, given.get("--host", "127.0.0.1"), port).start()
    for line in LOG.read_text().splitlines():
        sys.stdout.write(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", line) + "\n")
        sys.stdout.flush()
        if any(phase in line for phase in PHASES):
            await asyncio.sleep(PHASE_S)
        if "listening on" in line:
            break
    server.is_ready = True
    await batch.run()
    del held


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(serve([argument for argument in sys.argv[2:] if argument != "-I"]))
