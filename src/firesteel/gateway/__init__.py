"""One endpoint over many models: loaded on demand, evicted by bytes, streamed at wire speed.

`DESIGN.md` has the whole. The process that carries bytes plans nothing: loads are child processes. The door
opens lazily: `firesteel key` needs the keys and no plane.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.gateway.heap import freeze, give_back_pages, hold_pages
    from firesteel.gateway.plane.server import new_loop
    from firesteel.gateway.serve import Manner, Told, serve_file

__all__ = ["Manner", "Told", "freeze", "give_back_pages", "hold_pages", "new_loop", "serve_file"]

_WHERE = {
    "new_loop": "plane.server",
    "Manner": "serve",
    "Told": "serve",
    "serve_file": "serve",
    "freeze": "heap",
    "give_back_pages": "heap",
    "hold_pages": "heap",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(name)
