from __future__ import annotations

import pytest

from firesteel.run.guard import reason_to_stop
from firesteel.units import GIB

FLOOR = 4 * GIB


@pytest.mark.parametrize(
    ("samples", "stops"),
    [
        ((), False),
        ((GIB,), False),
        ((5 * GIB, 3 * GIB), False),
        ((3 * GIB, 5 * GIB), False),
        ((3 * GIB, 2 * GIB), True),
        ((29 * GIB, 22 * GIB, 3 * GIB, 2 * GIB), True),
        ((FLOOR, FLOOR), False),
    ],
)
def test_two_low_readings_in_a_row_stop_the_engine(samples: tuple[int, ...], stops: bool) -> None:
    assert (reason_to_stop(samples, FLOOR) is not None) is stops


def test_the_reason_has_both_figures() -> None:
    assert reason_to_stop((2 * GIB, 1 * GIB), FLOOR) == (
        "the memory guard stopped it: 1.0 GiB were left on the host, the floor is 4.0 GiB"
    )
