"""A signal that asks the process to end interrupts its work, so that what was started is cleaned up.

A signal that our parent ignores stays ignored: `nohup` does that to SIGHUP, and a shell to SIGINT of
what it runs in the background.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a service manager, a closed terminal."""


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on signals that would otherwise end the process at once."""
    changed = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def cancel_on_signals() -> None:
    """Cancel the current task on such a signal."""
    import asyncio  # a third of the imports of a plan, which cancels nothing

    task = asyncio.current_task()
    assert task is not None
    signalled = False

    def cancel_once() -> None:  # a second signal, of an impatient user, must not interrupt the clean-up
        nonlocal signalled
        if not signalled:
            signalled = True
            task.cancel()

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, cancel_once)
