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

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.sim.scenario_files import scenario, scenarios
    from firesteel.sim.setup import create_spark, enter, environment
    from firesteel.sim.spark import SimFault, SimGpuProcess, SimSpark, TrueSpeed

__all__ = [
    "SimFault",
    "SimGpuProcess",
    "SimSpark",
    "TrueSpeed",
    "create_spark",
    "enter",
    "environment",
    "scenario",
    "scenarios",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "setup": (
            "enter",
            "environment",
            "create_spark",
        ),
        "scenario_files": (
            "scenario",
            "scenarios",
        ),
        "spark": (
            "SimFault",
            "SimGpuProcess",
            "TrueSpeed",
            "SimSpark",
        ),
    },
)
