"""Random walks of requests, and bugs that the walks must find.

`scripts/explore-requests` takes the same walks ten thousand times.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from firesteel.gateway.http.attempt import Attempt
from firesteel.gateway.http.reply import Reply
from firesteel.gateway.http.request import Request, RequestState
from tests.gateway.http.request_walk import Broken, walk

WALKS = 200


async def walks(count: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(count):
        counts += (await walk(random.Random(seed))).counts
    return counts


def test_one_end_for_each_submit_and_whole_responses() -> None:
    counts = asyncio.run(walks(WALKS))
    for state in RequestState:
        if state not in (RequestState.NEW, RequestState.DONE):
            assert counts[f"state: {state.value}"], f"the walks never go to {state.value}"


BUGS = {
    "a client that leaves is not noticed": (Request, "client_left", lambda self: None),
    "a request that is abandoned ends twice": (Request, "_abandon", lambda self: self._finish("left")),
    "a connection is not closed": (Attempt, "drop", lambda self: None),
    "an answer follows a part of another": (Reply, "takes_another", lambda self: True),
    "a comment within an event": (Attempt, "is_between_events", lambda self, is_framed: True),
    "an error within a chunk": (Attempt, "is_between_chunks", lambda self: True),
    "a stream without an end": (Reply, "end", lambda self: self._client.done(keep=self._keeps_alive)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_walks_find(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong = BUGS[bug]
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises((Broken, AssertionError)):
        asyncio.run(walks(10 * WALKS))
