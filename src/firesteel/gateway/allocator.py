"""The memory of a process that carries bytes for weeks.

    hold_pages()         first of all
    freeze()             when everything is loaded
    give_back_pages()    every few seconds

Prompts of 400 KB come and go. glibc gives each one's pages back to the kernel when it ends and asks for them
again with the next, and these faults cost as much as all else that is done for such a request. So free memory
is kept for some seconds, and then given back wherever it lies, which glibc by itself does only at the end.

And Python's collector goes through all objects now and then, to find the unreachable: 45,000 of them belong
to modules and classes that never will be, and looking at them stops every stream for 20 ms. What is there
when we begin to listen is not looked at again.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

_KEPT_BYTES = 4 * 2**20
_OWN_MAP_BYTES = 2**20
"""A block of this size or larger is mapped by itself, and goes back at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""As in glibc's <malloc.h>; `man 3 mallopt` tells what they do."""


def hold_pages() -> None:
    """Where the allocator is glibc's; others have no `mallopt`, or one that does nothing."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAP_BYTES)
        mallopt(_M_ARENA_MAX, 1)  # our threads allocate little: an arena for each is memory for nothing


def give_back_pages() -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def freeze() -> None:
    gc.collect()
    gc.freeze()
