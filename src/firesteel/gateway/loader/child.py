"""What every job has in common: it runs in a separate process, and prints JSON, one object a line.

    {"doing": {"phase": "launch", "words": "loading weights, 9 of 20 shards", "eta_s": 120}}
    {"done":  {"phase": "verify", "words": "..."}}
    {"read": {...}} | {"up": {...}} | {"gone": {...}} | {"failed": {"what": ..., "next": ..., "kind": ...}}

The last line is the result; the exit code is the one that `firesteel` itself would give.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.service_config import Reason
from firesteel.values import plain

_output_fd = 1


def say(line: Mapping[str, Any]) -> None:
    """Prints one line. A reader that is gone does not stop a job in the middle."""
    with suppress(BrokenPipeError):
        rest = json.dumps(line).encode() + b"\n"
        while rest:
            rest = rest[os.write(_output_fd, rest) :]


def reserve_stdout() -> None:
    """Libraries and child processes print too: what they print goes to stderr."""
    global _output_fd
    _output_fd = os.dup(1)
    os.dup2(2, 1)


def end_with_parent() -> None:
    """The parent's end of stdin closes however it ends: that counts as a SIGTERM."""

    def watch() -> None:
        try:
            while os.read(0, 4096):  # until the other end is closed
                pass
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def reason_of(error: FiresteelError) -> Reason:
    return Reason(error.what, error.next, error.kind)


def run_job(jobs: Mapping[str, Callable[[str], None]], arguments: list[str]) -> int:
    try:
        if len(arguments) != 2 or arguments[0] not in jobs:
            raise UsageError("the loader takes a job and its argument", next="firesteel serve")
        jobs[arguments[0]](arguments[1])
    except FiresteelError as error:
        say({"failed": plain(reason_of(error))})
        return error.exit_code
    except (asyncio.CancelledError, KeyboardInterrupt):
        reason = Reason("the load was cancelled, and what it had started is stopped", kind="cancelled")
        say({"failed": plain(reason)})
        return 130
    except Exception as error:  # the gateway has clients that wait for a reason
        traceback.print_exc()
        what = f"the loader failed with {type(error).__name__}: {error}"[:500]
        say({"failed": plain(Reason(what, "firesteel serve --debug", "broke"))})
        return 1
    return 0


def leave(code: int) -> None:
    """End at once: the gateway waits for the exit, and there is nothing to clean up."""
    sys.stderr.flush()
    os._exit(code)
