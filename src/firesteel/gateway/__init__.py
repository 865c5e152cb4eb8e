"""One endpoint over many models: loaded on demand, evicted by memory size, streamed at wire speed.

`DESIGN.md` explains the structure. The process that moves bytes never plans or loads a model: that happens in
child processes. The exports are lazy: `firesteel key` needs the keys but not the HTTP server.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.gateway.allocator import freeze_startup_objects, release_free_memory, retain_free_memory
    from firesteel.gateway.http.server import new_loop
    from firesteel.gateway.serve import ServeEvent, ServeOptions, serve_file

__all__ = [
    "ServeEvent",
    "ServeOptions",
    "freeze_startup_objects",
    "new_loop",
    "release_free_memory",
    "retain_free_memory",
    "serve_file",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(
        __name__,
        {
            "http.server": ("new_loop",),
            "serve": (
                "ServeEvent",
                "ServeOptions",
                "serve_file",
            ),
            "allocator": (
                "freeze_startup_objects",
                "release_free_memory",
                "retain_free_memory",
            ),
        },
    )
