"""The service file is watched: a change is read by a child, and only what is different is touched.

By looking, once a second: notifications do not come through bind mounts, and an editor that writes beside and
renames makes another file. Two looks must agree before it is read, so that half a file is not. One with
mistakes changes nothing: what was served is served on, and the reason is told until it is good again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firesteel.gateway.loader.process import Loader, LoaderFailed
from firesteel.gateway.periodic import repeat
from firesteel.gateway.service_config import InvalidMessage, Reason, ServiceConfig

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class FileVersion:
    """What tells one state of a file from another."""

    changed_ns: int
    size: int
    inode: int


def file_version(path: str) -> FileVersion | None:
    """None for a file that is not there now. A link is followed: Kubernetes swaps those."""
    try:
        about = Path(path).stat()
    except OSError:
        return None
    return FileVersion(about.st_mtime_ns, about.st_size, about.st_ino)


class ServiceFileWatch:
    """`problem` is what is wrong with the file now; None: what is served is what it says."""

    def __init__(
        self,
        path: str,
        hands: Loader,
        changed: Callable[[ServiceConfig], None],
        troubled: Callable[[Reason], None],
        read_as: FileVersion | None = None,
    ) -> None:
        """`read_as`: what the file was like before it was read the first time."""
        self._path, self._hands, self._changed, self._troubled = path, hands, changed, troubled
        self._read = read_as or file_version(path)
        self._last = self._read
        self._task: asyncio.Task[None] | None = None
        self.problem: Reason | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(repeat(self.look, _LOOK_S))

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> bool:
        """One look; whether the file was read."""
        now, before = file_version(self._path), self._last
        self._last = now
        if now == self._read or now != before:
            return False
        self._read = now
        if now is None:
            self._trouble(Reason(f"{self._path} is gone; what it said last is served on", "put it back"))
            return False
        try:
            reading = await self._hands.read(self._path)
        except LoaderFailed as error:
            self._trouble(error.why)
        except InvalidMessage as error:
            self._trouble(Reason(f"what {self._path} came to cannot be read ({error})"))
        else:
            self.problem = None
            self._changed(reading)
        return True

    def _trouble(self, why: Reason) -> None:
        self.problem = why
        self._troubled(why)
