"""Fails a test that does not end, and shows where it is: its threads and its asyncio tasks.

The failure is raised wherever the main thread waits. Where that is caught, the process ends a little later;
pytest-xdist then names the test, starts another worker and goes on. A signal and not a thread: a process with
threads cannot be forked safely, and Python 3.12 warns about it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

LIMIT_S = float(os.environ.get("FIRESTEEL_TEST_LIMIT_S", "600"))
"""Of each of set-up, test and tear-down: far more than any takes on a busy machine."""
grace_s = 60.0
"""For a failure to be caught and reported."""
Wrapper = Generator[None, Any, Any]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Wrapper:
    with _limit(item, "its set-up"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Wrapper:
    with _limit(item, "the test"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Wrapper:
    with _limit(item, "its tear-down"):
        return (yield)


@contextmanager
def _limit(item: pytest.Item, what: str) -> Iterator[None]:
    problem = f"{item.nodeid}: {what} did not end within {LIMIT_S:g} s"

    def fail(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, grace_s)
        _show_where(problem)
        pytest.fail(problem)

    def end(number: int, frame: FrameType | None) -> None:
        capture = item.config.pluginmanager.getplugin("capturemanager")
        capture.suspend_global_capture(in_=True)
        _show_where(f"{problem}, nor when it was made to fail")
        os._exit(1)

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _show_where(problem: str) -> None:
    tasks = [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]
    lines = [
        problem,
        *(f"\n{task.get_name()}:\n{''.join(_awaited(task.get_coro()))}" for task in tasks),
        "",
        "",
    ]
    sys.stderr.write("\n".join(lines))
    sys.stderr.flush()
    faulthandler.dump_traceback(2)


def _awaited(waiting: object) -> list[str]:
    """What a coroutine waits for, outermost first. `Task.get_stack` has only the first of these frames."""
    frames: list[tuple[FrameType, int]] = []
    while waiting is not None:
        names = ("cr", "ag", "gi")
        frame = next((found for name in names if (found := getattr(waiting, f"{name}_frame", None))), None)
        if frame:
            frames.append((frame, frame.f_lineno))
            names = ("cr_await", "ag_await", "gi_yieldfrom")
            waiting = next((found for name in names if (found := getattr(waiting, name, None))), None)
        else:  # what `async for` waits for does not say which generator it belongs to
            waiting = next((each for each in gc.get_referents(waiting) if hasattr(each, "ag_frame")), None)
    return traceback.StackSummary.extract(iter(frames)).format()
