"""Watch the service file: a child process reads a changed file, and only what changed is touched.

By polling once a second: notifications do not pass bind mounts, and an editor that writes a new file and
renames it replaces the watched one. The file must look the same twice before it is read, so that a
half-written one is not. A file with errors changes nothing: the old one stays in use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from firesteel.gateway.loader.process import Loader, LoaderFailed
from firesteel.gateway.periodic import BackgroundTasks, repeat
from firesteel.gateway.service_config import Reason, ServiceConfig
from firesteel.values import Value

_POLL_S = 1.0


class FileVersion(Value):
    """Differs whenever the file has changed."""

    changed_ns: int
    size: int
    inode: int


def file_version(path: str) -> FileVersion | None:
    """None if the file is missing. Links are followed: Kubernetes replaces those."""
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return FileVersion(stat.st_mtime_ns, stat.st_size, stat.st_ino)


class ServiceFileWatch:
    """`problem` is what is wrong with the file now; None: what is served matches it."""

    def __init__(
        self,
        path: str,
        loader: Loader,
        on_change: Callable[[ServiceConfig], None],
        on_problem: Callable[[Reason], None],
        first_read: FileVersion | None = None,
        releases: str = "",
    ) -> None:
        """`first_read` is the version of the file just before it was read for the first time. `releases`: a
        file that changes what the models of this one are, written by `upgrade`."""
        self._path, self._loader, self._on_change, self._on_problem = path, loader, on_change, on_problem
        self._releases = releases
        self._read = (first_read or file_version(path), file_version(releases))
        self._last = self._read
        self._tasks = BackgroundTasks()
        self.problem: Reason | None = None

    def start(self) -> None:
        self._tasks.start(repeat(self.check, _POLL_S))

    async def close(self) -> None:
        await self._tasks.close()

    async def check(self) -> bool:
        """Return whether the file was read."""
        now, before = (file_version(self._path), file_version(self._releases)), self._last
        self._last = now
        if now == self._read or now != before:
            return False
        self._read = now
        if now[0] is None:
            self._report(
                Reason(f"{self._path} is missing; its last content stays in use", "restore the file")
            )
            return False
        try:
            config = await self._loader.read(self._path)
        except LoaderFailed as error:
            self._report(error.why)
        else:
            self.problem = None
            self._on_change(config)
        return True

    def _report(self, problem: Reason) -> None:
        self.problem = problem
        self._on_problem(problem)
