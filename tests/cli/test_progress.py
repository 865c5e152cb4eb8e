"""Progress on stderr: long work is named while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from firesteel.cli.output import progress
from firesteel.cli.output.show import err
from firesteel.edge.programs.build import BuildProgress
from tests.conftest import Firesteel


async def test_silent_work_is_named_although_a_line_came_right_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines come at most every ten seconds: that of a measurement of minutes came too soon, and was lost."""
    lines: list[str] = []
    is_named = asyncio.Event()

    def record(line: str, **_: object) -> None:
        lines.append(line)
        if "so far" in line:
            is_named.set()

    async def events() -> AsyncIterator[BuildProgress | int]:
        yield BuildProgress("verifying")
        yield BuildProgress("measuring both in turns", 360)
        await is_named.wait()
        yield 7

    monkeypatch.setattr(progress, "_INTERVAL_S", 0.05)
    monkeypatch.setattr(err, "print", record)
    assert await progress.last_of(events(), int) == 7
    assert lines[0] == "verifying" and lines[1].startswith("measuring both in turns, ")
    assert lines[1].endswith(" so far, about 6 min left")


def test_a_plan_that_a_rule_stops_does_not_say_no_warnings(firesteel: Firesteel) -> None:
    ran = firesteel("up", "smollm2", "--adapter", "polite=/nowhere/polite.gguf")
    assert ran.code == 3 and ", 1 stop\n" in ran.err and "no warnings" not in ran.err
