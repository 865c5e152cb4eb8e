"""Some of these tests run in simulated time."""

from tests.simulated_time import pytest_asyncio_loop_factories, simulated_clock

__all__ = ["pytest_asyncio_loop_factories", "simulated_clock"]
