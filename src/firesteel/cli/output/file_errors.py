"""A failure of the file system as a sentence, with what to type."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

from firesteel.cli.output.invocation import OutputLost, discard_output
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.library.hosts import home_folder

_ELSEWHERE = "FIRESTEEL_HOME=/path/with/space"


def file_error(error: OSError) -> FiresteelError:
    why = error.strerror or str(error)
    if not isinstance(error.filename, (str, bytes)):
        return _output_error(error, why)
    path, home = Path(os.fsdecode(error.filename)), home_folder()
    is_ours = path == home or home in path.parents
    if error.errno in (errno.EACCES, errno.EPERM) and is_ours:
        return HostNotReady(
            f"{path} cannot be opened: {why}; it belongs to {_owner(path)}",
            next=f'sudo chown -R "$(id -un)" {shlex.quote(str(home))}, or use another folder: {_ELSEWHERE}',
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostNotReady(f"{path} cannot be written: {why}", next=f"free some space, or set {_ELSEWHERE}")
    if is_ours:
        # Of a path that has a file where a folder belongs, the file is what is wrong.
        wrong = next((parent for parent in reversed(path.parents) if parent.is_file()), path)
        quoted = shlex.quote(str(wrong))
        return HostNotReady(f"{wrong} cannot be used: {why}", next=f"mv {quoted} {quoted}.old")
    return FiresteelError(f"{path} cannot be used: {why}", next=f"ls -ld {shlex.quote(str(path))}")


def _output_error(error: OSError, why: str) -> FiresteelError:
    """An error without a file is one of stdout, which may be full, or of a call to the system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        discard_output()
        return OutputLost(f"the output could not be written: {why}", next="firesteel ... > FILE")
    return FiresteelError(f"the system refused: {why}", next="firesteel --debug ..., for the traceback")


def _owner(path: Path) -> str:
    """Of the nearest folder that can be looked at."""
    for place in (path, *path.parents):
        try:
            return place.owner()
        except (OSError, KeyError):
            continue
    return "another user"
