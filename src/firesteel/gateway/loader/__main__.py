"""One job in a separate process: read a service file, bring a model up, or stop one.

    python -m firesteel.gateway.loader read FILE
    python -m firesteel.gateway.loader load '{"name": "coder", "recipe": ..., "port": 8000, "path": FILE}'
    python -m firesteel.gateway.loader unload NAME

The gateway starts it and reads what it prints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from firesteel.gateway.loader.child import leave, reserve_stdout, run_job


def _jobs(arguments: list[str]) -> Mapping[str, Callable[[str], None]]:
    if arguments[:1] == ["unload"]:  # without the second that the planner's imports take
        from firesteel.gateway.loader.unload import unload_job

        return {"unload": unload_job}
    from firesteel.gateway.loader.job import load_job, read_service_job

    return {"read": read_service_job, "load": load_job}


if __name__ == "__main__":
    reserve_stdout()
    leave(run_job(_jobs(sys.argv[1:]), sys.argv[1:]))
