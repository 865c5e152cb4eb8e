"""When the memory of a stopped engine counts as back."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.edge.sim.setup import create_spark, environment
from firesteel.edge.sim.spark import SimSpark
from firesteel.gateway.loader.process import (
    CALM_S,
    LIMIT_S,
    LONG_CALM_S,
    AvailableSample,
    ExpectedRelease,
    describe_release,
    is_released,
    wait_until_released,
)
from firesteel.units import GIB


def samples(*levels_gib: float, every_s: float = 0.1) -> list[AvailableSample]:
    return [AvailableSample(at * every_s, round(level * GIB)) for at, level in enumerate(levels_gib)]


BACK = ExpectedRelease(available_bytes=10 * GIB, held_bytes=60 * GIB)
NOTHING = ExpectedRelease()


@pytest.mark.parametrize(
    ("seen", "freed", "is_over"),
    [
        ([], NOTHING, False),
        (samples(70), NOTHING, False),
        (samples(*[70] * 11), NOTHING, True),
        (samples(*[70] * 11), BACK, True),
        (samples(*[20] * 11), BACK, False),  # calm, but most of it was not seen yet
        (samples(*[20] * 101), BACK, True),  # nor will it be
        (samples(*[20 + at for at in range(50)]), BACK, False),  # rising
        (samples(*[20 + at for at in range(50)], *[70] * 11), BACK, True),
        (samples(*[70 - 0.1 * at for at in range(11)]), BACK, True),  # somebody else takes it: no rise
        (samples(*[40 + 0.01 * at for at in range(40)]), BACK, False),  # slowly is rising too
        (samples(70, 40, *[70] * 10), BACK, False),  # a dip and a rise
        (samples(*[20 + 0.1 * at for at in range(100)], every_s=1), BACK, True),  # not forever
    ],
)
def test_calm(seen: list[AvailableSample], freed: ExpectedRelease, is_over: bool) -> None:
    assert is_released(seen, freed) is is_over


@pytest.mark.parametrize(
    ("freed", "available_gib", "text"),
    [
        (BACK, 70, "and its memory is free"),
        (
            BACK,
            20,
            "but of its 60.0 GiB only 10.0 GiB are seen free",
        ),  # the wait is over, the memory not back
        (BACK, 5, "but of its 60.0 GiB only 0 B are seen free"),
        (ExpectedRelease(10 * GIB, 60 * GIB, is_process=True), 5, "and its memory is free"),
        (BACK, None, "and whether its memory is free cannot be read"),
    ],
)
def test_memory_is_called_free_only_where_it_was_seen(
    freed: ExpectedRelease, available_gib: int | None, text: str
) -> None:
    assert describe_release(freed, available_gib and available_gib * GIB) == text


def test_the_waits_are_in_order() -> None:
    assert CALM_S < LONG_CALM_S < LIMIT_S


async def test_the_driver_waits_until_a_rise_is_over() -> None:
    levels = iter([GIB, 2 * GIB, 3 * GIB, 4 * GIB])
    last = 5 * GIB
    read: list[int] = []

    def available() -> int:
        read.append(next(levels, last))
        return read[-1]

    assert await wait_until_released(ExpectedRelease(GIB, GIB), available, poll_s=0.05) == last
    assert len(read) > CALM_S / 0.05 / 2


async def test_a_simulated_spark_is_read_the_same_way(tmp_path: Path) -> None:
    folder = tmp_path / "spark"
    create_spark(folder, SimSpark())
    code = (
        "import asyncio, json\n"
        "from firesteel.gateway.loader.process import ExpectedRelease, wait_until_released\n"
        "print(json.dumps(asyncio.run(wait_until_released(ExpectedRelease()))))"
    )
    run = asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        env=environment(folder, os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    available = json.loads((await run).stdout)
    assert available > 100 * GIB, "a Spark at rest has more than this machine's tests can see"
