"""Server-sent events as OpenAI-compatible servers send them: one `data:` line each, `[DONE]` at the end.

Pure: pieces of a body go in as they arrive, lines and the data of events come out, so a client that waits for
bytes and one that replays a recording read a stream the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

DONE = "[DONE]"
"""The data of the last event."""
MAX_LINE_BYTES = 16 * 2**20


class LineSplitter:
    """Cuts the pieces of a body into lines; a line may arrive in several pieces."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that this piece completes, without white space at either end."""
        first, *others = piece.split(b"\n")
        self._keep(first)
        for start in others:
            yield self.rest()
            self._pending, self._pending_bytes = [], 0
            self._keep(start)

    def rest(self) -> bytes:
        """What came after the last newline."""
        return b"".join(self._pending).strip()

    def _keep(self, part: bytes) -> None:
        self._pending.append(part)
        self._pending_bytes += len(part)
        if self._pending_bytes > MAX_LINE_BYTES:
            raise ValueError(f"a line of the stream is longer than {MAX_LINE_BYTES:,} bytes")


def event_data(line: bytes) -> str | None:
    """The data of an event; None for a blank line, a comment, and fields other than `data`.

    Bytes that are not UTF-8 become U+FFFD, so that checks of the text see them.
    """
    return line[5:].strip().decode("utf-8", "replace") if line.startswith(b"data:") else None
