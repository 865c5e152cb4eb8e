"""The errors that users see, with their exit codes, and how to show text from outside safely.

    FiresteelError 1   failed
      UsageError   2   the command line or a file is wrong
        InvalidFile    a file, with a line for each mistake
      Stopped      3   stopped by a rule
      DoesNotFit   4   the launch does not fit in memory
      HostNotReady 5   this machine lacks something
        ServerNotReady a remote server does not answer, or rejects the request

The message is a sentence; `next` is what to type. One `except` in `cli/main.py` shows both and exits with
the code. Messages quote names that others chose: these may contain characters that move a terminal's cursor,
rename its window, fill its clipboard or reverse the line.

    printable            on one line, `?` for what cannot be shown: names and quotes
    escape_unprintable   `\\x1b` for it, where the reader must see what it was: findings and answers

Quoting for a format (YAML, systemd, the shell, JSON) belongs to the module that writes the format.
"""

from __future__ import annotations

from typing import Any
from unicodedata import category


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


def printable(text: str, max_chars: int | None = None) -> str:
    """The text on one line, a blank for white space and `?` for characters that cannot be shown.

    As long as before, unless it exceeds `max_chars`: then it is cut and ends in `…`.
    """
    text = _cut(text, max_chars)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def escape_unprintable(text: str, max_chars: int | None = None) -> str:
    """The text with `\\x1b` or `\\u202e` for what cannot be shown; newlines, tabs and wide blanks stay."""
    if max_chars is not None:
        text = text[: max_chars + 1]  # an endless text costs no more than its beginning
    if not text.isprintable():
        text = "".join(
            char
            if char.isprintable() or char in "\n\t" or category(char) == "Zs"
            else char.encode("unicode_escape").decode("ascii")
            for char in text
        )
    return _cut(text, max_chars)


def printable_json(value: Any) -> Any:
    """A JSON value with all its texts printable, keys and values alike."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): printable_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [printable_json(item) for item in value]
    return value


def _cut(text: str, max_chars: int | None) -> str:
    return text if max_chars is None or len(text) <= max_chars else f"{text[: max_chars - 1]}…"
