"""What one repetition does while its load lasts: nothing but the clock and the sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator

from firesteel.bench.load.client import ClientCost, TargetServer
from firesteel.bench.load.repetition import Repetition, SharedLoad
from firesteel.bench.load.server import prepare
from firesteel.bench.measurements import Point, RequestSample, RequestSettings, Subject
from tests.bench.faulty_server import MODEL, FaultyServer, serving


class Earlier(list[RequestSample]):
    """Samples that remember when somebody read them all."""

    def __init__(self, samples: list[RequestSample], server: FaultyServer) -> None:
        super().__init__(samples)
        self.server, self.reads_under_load, self.reads = server, 0, 0

    def __iter__(self) -> Iterator[RequestSample]:
        self.reads += 1
        self.reads_under_load += bool(self.server.streams)
        return super().__iter__()


async def test_earlier_samples_are_not_read_under_load() -> None:
    """Read with every request, thousands of samples of 127 gaps made the client late by up to 740 ms at 128
    streams of a real vLLM."""
    server = FaultyServer(token_s=0)
    sample = RequestSample(0, 0, 0.0, 0.01, 0.05, 0.06, (0.01,) * 4, 40, 5)
    earlier = Earlier([sample] * 4, server)
    async with serving(server) as url:
        prepared = await prepare(Subject(url, MODEL), RequestSettings(), ["prose"])
        with ClientCost() as cost:
            target = TargetServer.at(url)
            load = SharedLoad(target, MODEL, prepared, cost, "salt", 0, time.perf_counter())
            point = Point("sweep", "prose", 4, 40, 5)
            done = await Repetition(load, 0, point, 1, False, earlier).run()
    assert len(done) == 12 and not any(each.wrong for each in done)
    assert earlier.reads > 0 and earlier.reads_under_load == 0
