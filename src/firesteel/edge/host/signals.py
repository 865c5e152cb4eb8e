"""A signal that asks the process to end cancels its work, so that what was started is cleaned up."""

from __future__ import annotations

import asyncio
import signal


def cancel_on_signals() -> None:
    """Cancel the current task on SIGINT, SIGTERM or SIGHUP: Ctrl-C, a service manager, a closed terminal."""
    task = asyncio.current_task()
    assert task is not None
    signalled = False

    def cancel_once() -> None:  # a second signal, of an impatient user, must not interrupt the clean-up
        nonlocal signalled
        if not signalled:
            signalled = True
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, cancel_once)
