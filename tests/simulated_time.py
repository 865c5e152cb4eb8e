"""Time that passes only while everything waits. What is measured does not depend on the machine.

    pytestmark = SIMULATED_TIME  # in a folder whose conftest.py has the two names at the end of this file

Client and server of a test share one event loop. When neither has anything to do, its clock jumps to the next
timer; `time.perf_counter` and `time.monotonic` show the same clock. Sockets within this process take no time.
Programs cannot be started: they would live in another time.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import time
from collections.abc import Callable, Mapping

import pytest

_IN_FLIGHT_S = 0.0002
"""Real time for bytes that were sent to this process and cannot be read yet."""

SIMULATED_TIME = [pytest.mark.simulated_time, pytest.mark.usefixtures("simulated_clock")]


class _Clock:
    now_s = 1000.0


class _Selector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # for a thread
            return super().select()
        time.sleep(_IN_FLIGHT_S)  # not as a timeout, which is rounded up to a millisecond
        ready = super().select(0)
        if not ready:
            _Clock.now_s += max(0.0, timeout)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(_Selector())

    def time(self) -> float:
        return _Clock.now_s


@pytest.fixture
def simulated_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: _Clock.now_s)
    monkeypatch.setattr(time, "monotonic", lambda: _Clock.now_s)
    monkeypatch.setattr(sys, "executable", "/no/programs/in/simulated/time")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    is_simulated = item.get_closest_marker("simulated_time")
    return {"simulated": SimulatedLoop} if is_simulated else {"real": asyncio.new_event_loop}
