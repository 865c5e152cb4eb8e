"""The errors that users see, with their exit codes. The message is a sentence; `next` is what to type.

    FiresteelError 1   failed
      UsageError   2   the command line or a file is wrong
        InvalidFile    a file, with a line for each mistake
      Stopped      3   stopped by a rule
      DoesNotFit   4   the launch does not fit in memory
      HostNotReady 5   this machine lacks something
        ServerNotReady a server elsewhere does not answer, or not to us

One `except` in `cli/main.py` shows them and exits with the code.
"""

from __future__ import annotations


class FiresteelError(Exception):
    exit_code = 1
    kind = "failed"

    def __init__(self, what: str, *, next: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.next = next


class SuspectWeights(FiresteelError):
    """A start that failed as it would with damaged weights."""

    def __init__(self, what: str, *, next: str = "", otherwise: str = "") -> None:
        super().__init__(what, next=next)
        self.otherwise = otherwise
        """What to type if the weights are intact; empty: the same."""


class UsageError(FiresteelError):
    exit_code = 2
    kind = "usage"


class InvalidFile(UsageError):
    """A file that does not follow its schema; the message has a line for each mistake."""


class Stopped(FiresteelError):
    exit_code = 3
    kind = "stopped by a rule"


class DoesNotFit(FiresteelError):
    exit_code = 4
    kind = "does not fit"


class HostNotReady(FiresteelError):
    exit_code = 5
    kind = "host not ready"


class ServerNotReady(HostNotReady):
    kind = "server not ready"
