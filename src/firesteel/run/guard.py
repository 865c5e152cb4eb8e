"""When to stop an engine so that the host lives. Pure: samples in, a reason out.

On unified memory an engine that takes too much does not fail: the host wedges. So the keeper looks
once a second and stops the engine first. A single low reading may be page cache in motion; two in a
row are not.
"""

from __future__ import annotations

from firesteel.units import show_bytes

SAMPLES_TO_STOP = 2


def reason_to_stop(available_bytes: tuple[int, ...], floor_bytes: int) -> str | None:
    """The newest samples of MemAvailable, oldest first -> why the engine must stop, or None."""
    recent = available_bytes[-SAMPLES_TO_STOP:]
    if len(recent) < SAMPLES_TO_STOP or max(recent) >= floor_bytes:
        return None
    return (
        f"the memory guard stopped it: {show_bytes(recent[-1])} were left on the host, "
        f"the floor is {show_bytes(floor_bytes)}"
    )
