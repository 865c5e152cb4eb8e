"""Repeat a check for as long as the gateway runs; an error in one run does not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def repeat(check: Callable[[], Awaitable[object]], every_s: float) -> None:
    while True:  # until it is cancelled
        await asyncio.sleep(every_s)
        try:
            await check()
        except Exception as error:
            name = getattr(check, "__qualname__", "a check")
            context = {"message": f"{name} failed and is repeated later", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
