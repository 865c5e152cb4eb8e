"""Where headers are read from: a file, or a URL by ranges. Both are `facts` Sources."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from firesteel.edge.http.sync_client import Deadline, get_file
from firesteel.errors import FiresteelError
from firesteel.facts.formats.byte_source import truncated

_FRONT_BYTES = 2**20


class FileSource:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            # O_NONBLOCK: opening a pipe that nobody writes to would block.
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise FiresteelError(f"{path} cannot be read: {error.strerror}", next=f"ls -l {path}") from error
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise FiresteelError(f"{path} is not a file", next=f"ls -l {path}")
        self.size = status.st_size

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            raise truncated(self.name)
        return os.pread(self._fd, length, start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class UrlSource:
    """Reads only ranges; a server that ignores `Range` is refused."""

    def __init__(self, url: str, headers: Mapping[str, str], deadline: Deadline) -> None:
        self.name = url.rsplit("/", 1)[-1]
        self._url, self._headers, self._deadline = url, headers, deadline
        self.size = 0
        # Most headers fit into the first MiB, so that one request is enough.
        self._front = self._get(0, _FRONT_BYTES)

    def _get(self, start: int, length: int) -> bytes:
        headers = {**self._headers, "Range": f"bytes={start}-{start + length - 1}"}
        response = get_file(self._url, headers, limit_bytes=length, deadline=self._deadline)
        if response is None:
            raise FiresteelError(f"{self._url} does not exist", next="firesteel models")
        content_range = re.fullmatch(rf"bytes {start}-\d+/(\d+)", response.content_range or "")
        if response.status != 206 or content_range is None:
            raise FiresteelError(f"{self._url} does not serve ranges", next="download the file first")
        self.size = int(content_range[1])
        return response.body

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            raise truncated(self.name)
        if start + length <= len(self._front):
            return self._front[start : start + length]
        data = self._get(start, length)
        if len(data) != length:
            raise truncated(self.name)
        return data
