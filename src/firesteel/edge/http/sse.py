"""Server-sent events as OpenAI-compatible servers send them: one `data:` line each, `[DONE]` at the end.

Pure: pieces of a body go in as they arrive, lines and the data of events come out, so a client that waits for
bytes and one that replays a recording read a stream the same way.
"""

from __future__ import annotations

DONE = "[DONE]"
"""The data of the last event."""
MAX_LINE_BYTES = 16 * 2**20


class LineTooLong(ValueError):
    """A line of the stream has no end within `MAX_LINE_BYTES`."""


class LineSplitter:
    """Cuts the pieces of a body into lines; a line may arrive in several pieces."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes, without white space at either end."""
        *lines, last = piece.split(b"\n")
        if lines and self._pending:
            self._keep(lines[0])
            lines[0] = self.rest()
            self._pending, self._pending_bytes = [], 0
        if last:
            self._keep(last)
        return [line.strip() for line in lines]

    def rest(self) -> bytes:
        """What came after the last newline."""
        return b"".join(self._pending).strip()

    def _keep(self, part: bytes) -> None:
        self._pending.append(part)
        self._pending_bytes += len(part)
        if self._pending_bytes > MAX_LINE_BYTES:
            raise LineTooLong(f"a line of the stream is longer than {MAX_LINE_BYTES:,} bytes")


def event_bytes(line: bytes) -> bytes | None:
    """The data of an event; None for a blank line, a comment, and fields other than `data`."""
    return line[5:].strip() if line.startswith(b"data:") else None


def event_data(line: bytes) -> str | None:
    """The same as text: bytes that are not UTF-8 become U+FFFD, so that checks of the text see them."""
    data = event_bytes(line)
    return None if data is None else data.decode("utf-8", "replace")
