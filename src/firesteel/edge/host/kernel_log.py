"""The kernel's log, followed from now on without root where that is allowed.

`/dev/kmsg` gives it to root, and to everybody on a kernel without `dmesg_restrict`. Where it does not, the
journal does to members of the groups `adm` and `systemd-journal`, as the first user of a DGX Spark is.
Otherwise there is no log: `None`, never an empty one.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from firesteel.edge.host.machine_files import machine_file, sim_folder
from firesteel.edge.host.process import die_with_parent
from firesteel.facts.host.memory_sample import KernelEvent, parse_kernel_log

_MAX_RECORDS = 2000
"""Read at one go. A driver in distress logs hundreds a second; what is beyond is read the next time."""
_RECORD_BYTES = 8192
_JOURNAL = ("journalctl", "--dmesg", "--quiet", "--no-pager", "--output=cat")
_PATIENCE_S = 5


class KernelLog:
    """What was logged before it was opened is the past and not told."""

    def __init__(self) -> None:
        self._journal: subprocess.Popen[bytes] | None = None
        self._half = b""
        self._source = self._open_kmsg()
        if self._source is None and sim_folder() is None:
            self._source = self._open_journal()

    @property
    def is_readable(self) -> bool:
        return self._source is not None

    def news(self) -> tuple[KernelEvent, ...] | None:
        """Since the last time it was asked; None when the log cannot be read. Never waits."""
        if self._source is None:
            return None
        data = self._half + b"".join(self._records(self._source))
        whole, newline, self._half = data.rpartition(b"\n")
        return parse_kernel_log((whole + newline).decode(errors="replace"))

    def close(self) -> None:
        if self._source is not None:
            os.close(self._source)
            self._source = None
        if self._journal is not None:
            self._journal.kill()
            self._journal.wait()
            self._journal = None

    def _records(self, source: int) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(source, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next are there
            except OSError:
                break  # nothing more for now
            if not record:
                break
            found.append(record)
        return found

    def _open_kmsg(self) -> int | None:
        source = None
        try:
            source = os.open(machine_file("dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(source, 0, os.SEEK_END)
        except OSError:
            if source is not None:
                os.close(source)
            return None
        return source

    def _open_journal(self) -> int | None:
        """Who may not read it is shown an empty journal; no kernel boots without a line."""
        try:
            last = subprocess.run(
                [*_JOURNAL, "--lines=1"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_PATIENCE_S,
                check=False,
            )
            if not last.stdout.strip():
                return None
            words = [*_JOURNAL, "--lines=0", "--follow"]
            self._journal = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        assert self._journal.stdout is not None
        source = os.dup(self._journal.stdout.fileno())
        self._journal.stdout.close()
        os.set_blocking(source, False)
        return source

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()
