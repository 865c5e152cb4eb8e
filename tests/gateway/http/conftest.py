"""Every test of the plane runs on both loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop

from firesteel.gateway.http.limits import HttpLimits
from tests.gateway.http.kit import FakeDispatcher, RunningGateway, run_gateway

Open = Callable[..., "asyncio.Future[RunningGateway]"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    """A server with an engine behind it."""
    async with run_gateway(FakeDispatcher(), HttpLimits(sweep_s=0.05)) as gateway:
        yield gateway
