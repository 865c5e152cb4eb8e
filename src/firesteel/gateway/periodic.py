"""What is done again and again for as long as the gateway lives; one mistake in it does not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def repeat(look: Callable[[], Awaitable[object]], every_s: float) -> None:
    while True:  # until it is cancelled
        await asyncio.sleep(every_s)
        try:
            await look()
        except Exception as error:
            name = getattr(look, "__qualname__", "a look")
            what = {"message": f"{name} went wrong and is done again later", "exception": error}
            asyncio.get_running_loop().call_exception_handler(what)
