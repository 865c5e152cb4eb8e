"""What `doctor --measure` measures: memory, disk, wake-up, GPU, and links to other hosts."""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.edge.home import find_home
from firesteel.hosts.doctor.measure import MeasureEvent, Measuring, NotMeasured, measure

__all__ = ["Measuring", "NotMeasured"]  # events, beside the figures


def measure_host() -> Iterator[MeasureEvent]:
    """What is measured, then its figures, or why there is none."""
    from firesteel.hosts.doctor.measure_rails import measure_rails  # ssh

    yield from measure(find_home())
    yield Measuring("links to other hosts")
    yield from measure_rails(find_home())
