"""The reaper: the parent of an engine that is a program of this machine, and of all that it starts.

    python reaper.py PROGRAM ARGUMENT...

vLLM and SGLang start processes of their own, which hold the GPU's memory. When their parent is killed they
stay, and the memory with them. A process whose parent has ended becomes a child of the reaper (it is a
"subreaper" to the kernel), so none can escape it. The reaper ends the whole tree when its program has ended,
when it gets a signal to stop, and when its own parent, the supervisor, is gone.

It imports nothing of firesteel and little of Python: every such engine has one of these.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05
_TREE_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL to what the program has left behind."""
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def reap(argv: list[str], supervisor: int) -> int:
    """Run the program; its exit code, or 128 + the signal that ended it."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_FORWARDED, signal.SIGCHLD))
    program = os.fork()
    if program == 0:
        _become(argv, libc)
    status = None
    while status is None:
        # The supervisor may have ended before PDEATHSIG was set: then only the new parent shows it.
        number = signal.sigtimedwait((*_FORWARDED, signal.SIGCHLD), 1.0)
        if os.getppid() != supervisor:
            end_tree(grace_s=_TREE_GRACE_S)
            return 128 + signal.SIGTERM  # no parent is left to read it
        if number and number.si_signo in _FORWARDED:
            os.kill(program, signal.SIGTERM)  # not yet collected, so the number is still its own
        status = _collect(program)
    end_tree(grace_s=_TREE_GRACE_S)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _become(argv: list[str], libc: ctypes.CDLL) -> None:
    """In the child. Ends with the reaper, should that be killed."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvpe(argv[0], argv, os.environ)
    except OSError as error:
        os.write(2, f"{argv[0]} cannot be started: {error.strerror}\n".encode())
        os._exit(127)


def _collect(program: int) -> int | None:
    """Bury all that ended; the status of the program once it is among them."""
    while True:
        try:
            number, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if number == program:
            return status
        if number == 0:
            return None


def end_tree(grace_s: float) -> None:
    """End every process below this one: first asked, then killed, then waited for."""
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while numbers := descendants(os.getpid()):
        is_late = time.monotonic() > deadline
        for number in numbers:
            if is_late or number not in asked:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL if is_late else signal.SIGTERM)
                asked.add(number)
        time.sleep(_POLL_S)
        while _bury_one():
            pass
        if time.monotonic() > deadline + grace_s:
            return  # stuck in the kernel: nothing that can be sent will end it sooner


def descendants(number: int) -> list[int]:
    numbers = [number]
    for parent in numbers:  # grows while it is read: children of children follow
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                numbers += [int(child) for child in children.read_text().split()]
    return [child for child in numbers[1:] if not _is_zombie(child)]


def _is_zombie(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _bury_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    # The supervisor is our parent; if it has already ended, our parent is another process by now.
    sys.exit(reap(sys.argv[1:], os.getppid()))
