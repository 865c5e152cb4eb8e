"""The same work on many items, in several processes where that is quicker.

A pool is worth its start for a folder, not for a file: below `LEAST_ITEMS` everything stays in this process.
Workers are forked, so they have what this process has loaded already; items and results are pickled.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

LEAST_ITEMS = 150
MOST_WORKERS = 8

T = TypeVar("T")
R = TypeVar("R")

_work_of_process: list[Callable[[Any], Any]] = []
"""In a worker: what to do with an item. It comes with the fork; with each item it would be pickled again."""


def map_in_processes(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """`work` of every item, in order."""
    workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    if len(items) < LEAST_ITEMS or workers < 2:
        yield from map(work, items)
        return
    # They take as long to import as a file takes to check.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    pool = ProcessPoolExecutor(workers, get_context("fork"), _begin, (work,))
    try:
        yield from pool.map(_do, items, chunksize=max(1, min(8, len(items) // (4 * workers))))
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(work: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that forked reports it, once
    _work_of_process.append(work)


def _do(item: Any) -> Any:
    return _work_of_process[-1](item)
