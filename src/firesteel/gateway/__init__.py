"""One endpoint over many models: loaded on demand, evicted by bytes, streamed at wire speed.

`DESIGN.md` has the whole. The process that carries bytes plans nothing: loads are child processes. The door
opens lazily: `firesteel key` needs the keys and no plane.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.gateway.allocator import freeze, give_back_pages, hold_pages
    from firesteel.gateway.http.server import new_loop
    from firesteel.gateway.serve import ServeEvent, ServeOptions, serve_file

__all__ = ["ServeEvent", "ServeOptions", "freeze", "give_back_pages", "hold_pages", "new_loop", "serve_file"]

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
            "freeze",
            "give_back_pages",
            "hold_pages",
        ),
    },
)
