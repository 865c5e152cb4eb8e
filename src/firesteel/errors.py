"""Every failure a user can meet. The message is a sentence; `next` is what to type.

    FiresteelError 1   failed
      UsageError   2   the words do not make sense
      Stopped      3   a rule says no
      DoesNotFit   4   the plan says no
      HostNotReady 5   this machine lacks something

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


class UsageError(FiresteelError):
    exit_code = 2
    kind = "usage"


class Stopped(FiresteelError):
    exit_code = 3
    kind = "stopped by a rule"


class DoesNotFit(FiresteelError):
    exit_code = 4
    kind = "does not fit"


class HostNotReady(FiresteelError):
    exit_code = 5
    kind = "host not ready"
