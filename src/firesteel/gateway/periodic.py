"""What runs in the background for as long as the gateway does: tasks, and checks that are repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine


class BackgroundTasks:
    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *work: Coroutine[None, None, None]) -> None:
        self._tasks += [asyncio.ensure_future(each) for each in work]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def repeat(check: Callable[[], Awaitable[object]], pause_s: Callable[[], float] | float) -> None:
    """An error in one run does not end it."""
    while True:  # until it is cancelled
        await asyncio.sleep(pause_s() if callable(pause_s) else pause_s)
        try:
            await check()
        except Exception as error:
            name = getattr(check, "__qualname__", "a check")
            context = {"message": f"{name} failed and is repeated later", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
