"""The same work on many items, in several processes where that is quicker.

A pool is worth its start for a folder, not for a file: below `LEAST_ITEMS` everything stays in this process.
Workers are forked, so they have what this process has loaded already; what they return is pickled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

LEAST_ITEMS = 150
MOST_WORKERS = 8

T = TypeVar("T")
R = TypeVar("R")


def map_in_processes(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """`work` of every item, in order."""
    workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    if len(items) < LEAST_ITEMS or workers < 2:
        yield from map(work, items)
        return
    # They take as long to import as a file takes to check.
    import signal
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    ignore_interrupt = (signal.SIGINT, signal.SIG_IGN)  # this process reports it, once
    pool = ProcessPoolExecutor(
        workers, get_context("fork"), initializer=signal.signal, initargs=ignore_interrupt
    )
    try:
        yield from pool.map(work, items, chunksize=max(1, min(16, len(items) // (4 * workers))))
    finally:
        pool.shutdown(cancel_futures=True)
