"""Memory settings for a process that moves bytes for weeks.

    retain_free_memory()        before anything else
    freeze_startup_objects()    when everything is loaded
    release_free_memory()       every few seconds

Prompts of 400 KB come and go. By default glibc returns the pages of each to the kernel and requests them
again for the next, and these page faults cost as much as everything else done for such a request. So free
memory is kept for some seconds, and then returned wherever it lies; glibc by itself returns only the end of
the heap.

Python's garbage collector examines all objects now and then. 45,000 of them belong to modules and classes
that are never freed, and examining them stops every stream for 20 ms. Objects that exist when the gateway
begins to listen are not examined again.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

_RETAINED_BYTES = 4 * 2**20
_MMAP_BYTES = 2**20
"""Larger blocks are mapped separately and returned at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""As in glibc's <malloc.h>; `man 3 mallopt` explains them."""


def retain_free_memory() -> None:
    """Has an effect only with glibc's allocator; others have no `mallopt`, or one that does nothing."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _RETAINED_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_ARENA_MAX, 1)  # our threads allocate little: an arena for each would waste memory


def release_free_memory() -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def freeze_startup_objects() -> None:
    gc.collect()
    gc.freeze()
