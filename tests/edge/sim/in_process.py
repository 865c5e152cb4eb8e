"""A simulated engine on the event loop of a test, for tests of its speed in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from firesteel.edge.sim.batch import Batch, EngineSpeed
from firesteel.edge.sim.engine_config import engine_config
from firesteel.edge.sim.server import SimServer


@asynccontextmanager
async def serving_engine(folder: Path, *launch: str) -> AsyncIterator[tuple[str, EngineSpeed]]:
    """The address and the true speed of what `docker run` with these words starts on a simulated Spark."""
    config = engine_config([*launch], folder, "id", {})
    speed = EngineSpeed.read(config["speed"])
    batch = Batch(speed)
    server = SimServer(config, batch, {}, None)
    server.is_ready = True
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    working = asyncio.create_task(batch.run())
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", speed
    finally:
        working.cancel()
        await runner.cleanup()
