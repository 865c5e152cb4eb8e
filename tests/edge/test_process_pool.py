"""Work on many items, in several processes."""

from __future__ import annotations

import os
from functools import partial

import pytest

from firesteel.edge.process_pool import LEAST_ITEMS, map_in_processes
from firesteel.errors import UsageError


def work(item: int, wrong: int = -1) -> tuple[int, int]:
    if item == wrong:
        raise UsageError("this one is wrong", next="firesteel check another")
    return item, os.getpid()


def test_many_items_are_worked_on_elsewhere_and_come_back_in_order() -> None:
    items, found = zip(*map_in_processes(work, range(LEAST_ITEMS)), strict=True)
    assert items == tuple(range(LEAST_ITEMS))
    assert (os.getpid() in found) == (len(os.sched_getaffinity(0)) == 1)


def test_few_items_stay_here() -> None:
    assert list(map_in_processes(work, [1, 2])) == [(1, os.getpid()), (2, os.getpid())]


def test_an_error_of_one_item_is_raised_here() -> None:
    with pytest.raises(UsageError) as error:
        list(map_in_processes(partial(work, wrong=70), range(LEAST_ITEMS)))
    assert error.value.next == "firesteel check another"
