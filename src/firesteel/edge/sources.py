"""Where headers are read from: a file, or a URL by ranges. Both are `facts` Sources."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from firesteel.errors import FiresteelError
from firesteel.facts import cut_short

_TIMEOUT_S = 30


class FileSource:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise FiresteelError(f"{path} cannot be read: {error.strerror}", next=f"ls -l {path}") from error
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            raise cut_short(self.name)
        return os.pread(self._file.fileno(), length, start)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class UrlSource:
    """Reads ranges only; a server that ignores `Range` is refused before its body is read."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.name = url.rsplit("/", 1)[-1]
        self._url = url
        self._headers = headers or {}
        self._first = self._get(0, 1024 * 1024 - 1)

    def _get(self, start: int, end: int) -> bytes:
        request = urllib.request.Request(
            self._url, headers={**self._headers, "Range": f"bytes={start}-{end}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                if answer.status != 206:
                    raise FiresteelError(
                        f"{self._url} does not serve ranges (HTTP {answer.status})",
                        next="download the file first",
                    )
                self.size = int(answer.headers["Content-Range"].rpartition("/")[2])
                return bytes(answer.read(end - start + 1))
        except urllib.error.HTTPError as error:
            error.close()
            raise url_error(self._url, error) from error
        except (OSError, ValueError, TypeError) as error:
            raise FiresteelError(f"{self._url} cannot be read: {error}", next="check the network") from error

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:
            raise cut_short(self.name)
        if start + length <= len(self._first):
            return self._first[start : start + length]
        data = self._get(start, start + length - 1) if length else b""
        if len(data) != length:
            raise cut_short(self.name)
        return data


def url_error(url: str, error: urllib.error.HTTPError) -> FiresteelError:
    if error.code in (401, 403):
        return FiresteelError(
            f"{url} is gated or private (HTTP {error.code})",
            next="accept its licence on the Hub, then set HF_TOKEN to a token that may read it",
        )
    if error.code == 404:
        return FiresteelError(f"{url} does not exist (HTTP 404)", next="firesteel models")
    return FiresteelError(f"{url} answered HTTP {error.code}", next="try again later")
