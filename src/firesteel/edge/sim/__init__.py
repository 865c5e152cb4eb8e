"""A pretend Spark: the doors of `edge`, onto a GB10 that is not there.

    make(folder, World(...))            writes one
    environment(folder, os.environ)     what a process needs in order to live on it
    enter("collapse", os.environ)       both, for `firesteel --sim collapse ...`

Processes, ports, HTTP, locks and files are real. Pretend are `/proc/meminfo` and its neighbours, the kernel's
log, `nvidia-smi` and `docker`: two small programs that stand first on PATH. A pretend container is a process
that says an engine's own start-up lines at the planned times, takes the planned memory in the pretend
`/proc/meminfo`, and answers real HTTP at the planned speed. Faults come on demand (`Fault`). Nothing that it
shows is a measurement, and everything that it serves says that it is pretend.

The door opens lazily: a keeper reads the pretend `/proc` once a second and must stay small.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.edge.sim.folder import enter, environment, make
    from firesteel.edge.sim.shelf import scenario, scenarios
    from firesteel.edge.sim.world import Fault, GpuUser, Truth, World

__all__ = ["Fault", "GpuUser", "Truth", "World", "enter", "environment", "make", "scenario", "scenarios"]

_WHERE = {
    "folder": ("enter", "environment", "make"),
    "shelf": ("scenario", "scenarios"),
    "world": ("Fault", "GpuUser", "Truth", "World"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(name)
