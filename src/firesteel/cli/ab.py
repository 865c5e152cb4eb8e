"""`firesteel compare --ab`: measures two servers in turns and keeps each as a run of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.bench.compare.ab import find_servers, measure_in_turns
from firesteel.bench.load.measure import RunFinished, RunProgress
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.load.shapes import Sizes
from firesteel.bench.results.history import History
from firesteel.bench.results.serialize import StoredRun
from firesteel.cli.output.show import err
from firesteel.edge.files.home import find_home
from firesteel.run.endpoints import key_from


async def measured_in_turns(
    history: History, names: Sequence[str], options: Mapping[str, Any]
) -> list[StoredRun]:
    servers = await find_servers(find_home(), names, options["model"], key_from(os.environ))
    sizes = Sizes(
        options["users"], options["depth"], options["text"], answer=next(iter(options["answer"]), None)
    )
    limits = RunLimits(options["budget"], options["precision"])
    done: dict[int, StoredRun] = {}
    shapes = options["shapes"] or ("quick",)
    async for side, event in measure_in_turns(history, servers, shapes, sizes, limits, options["seed"]):
        if isinstance(event, RunProgress):
            err.print(f"{'AB'[side]}       {event.text} ...")
        elif isinstance(event, RunFinished):
            done[side] = StoredRun(event.run, event.samples)
    return [done[side] for side in (0, 1)]
