"""Where headers are read from: a file, or a URL by ranges. Both are `facts` Sources."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from firesteel.edge.http.sync_client import Deadline, get
from firesteel.errors import FiresteelError
from firesteel.facts import cut_short

_FRONT_BYTES = 2**20


class FileSource:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            # Not to be held up by a pipe that nobody writes to.
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise FiresteelError(f"{path} cannot be read: {error.strerror}", next=f"ls -l {path}") from error
        about = os.fstat(self._fd)
        if not stat.S_ISREG(about.st_mode):
            os.close(self._fd)
            raise FiresteelError(f"{path} is not a file", next=f"ls -l {path}")
        self.size = about.st_size

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            raise cut_short(self.name)
        return os.pread(self._fd, length, start)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


class UrlSource:
    """Reads ranges only; a server that ignores `Range` is refused."""

    def __init__(self, url: str, headers: Mapping[str, str], patience: Deadline) -> None:
        self.name = url.rsplit("/", 1)[-1]
        self._url, self._headers, self._patience = url, headers, patience
        self.size = 0
        self._front = self._get(0, _FRONT_BYTES)

    def _get(self, start: int, length: int) -> bytes:
        headers = {**self._headers, "Range": f"bytes={start}-{start + length - 1}"}
        got = get(self._url, headers, limit_bytes=length, patience=self._patience)
        if got is None:
            raise FiresteelError(f"{self._url} does not exist", next="firesteel models")
        told = re.fullmatch(rf"bytes {start}-\d+/(\d+)", got.content_range or "")
        if got.status != 206 or told is None:
            raise FiresteelError(f"{self._url} does not serve ranges", next="download the file first")
        self.size = int(told[1])
        return got.body

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            raise cut_short(self.name)
        if start + length <= len(self._front):
            return self._front[start : start + length]
        data = self._get(start, length)
        if len(data) != length:
            raise cut_short(self.name)
        return data
