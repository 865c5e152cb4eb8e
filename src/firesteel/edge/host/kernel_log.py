"""The kernel's log, followed from now on, without root where that is allowed.

Root can read `/dev/kmsg`, and so can everybody on a kernel without `dmesg_restrict`. Members of the groups
`adm` and `systemd-journal`, like the first user of a DGX Spark, can read the journal instead. Otherwise there
is no log: `None`, never an empty one.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from firesteel.edge.host.machine_files import machine_file, sim_folder
from firesteel.edge.host.process import die_with_parent
from firesteel.facts.host.memory import KernelEvent, parse_kernel_log

_MAX_RECORDS = 2000
"""Read at once. A driver in distress logs hundreds a second; the rest is read the next time."""
_RECORD_BYTES = 8192
_JOURNAL = ("journalctl", "--dmesg", "--quiet", "--no-pager", "--output=cat")
_TIMEOUT_S = 5


class KernelLog:
    """Follows the log from the moment of opening; earlier records are skipped."""

    def __init__(self) -> None:
        self._journal: subprocess.Popen[bytes] | None = None
        self._incomplete = b""
        self._source = self._open_kmsg()
        if self._source is None and sim_folder() is None:
            self._source = self._open_journal()

    def new_events(self) -> tuple[KernelEvent, ...] | None:
        """Events since the last call; None when the log cannot be read. Never waits."""
        if self._source is None:
            return None
        data = self._incomplete + b"".join(self._records(self._source))
        lines, newline, self._incomplete = data.rpartition(b"\n")
        return parse_kernel_log((lines + newline).decode(errors="replace"))

    def close(self) -> None:
        if self._source is not None:
            os.close(self._source)
            self._source = None
        if self._journal is not None:
            self._journal.kill()
            self._journal.wait()
            self._journal = None

    def _records(self, source: int) -> list[bytes]:
        records: list[bytes] = []
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(source, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # records were overwritten before they were read; later ones can be
            except OSError:
                break  # nothing more for now
            if not record:
                break
            records.append(record)
        return records

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
        """A user without permission sees an empty journal, and no kernel boots without logging a line."""
        try:
            last = subprocess.run(
                [*_JOURNAL, "--lines=1"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            )
            if not last.stdout.strip():
                return None
            self._journal = subprocess.Popen(
                [*_JOURNAL, "--lines=0", "--follow"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
            assert self._journal.stdout is not None
            # A descriptor of our own, since Popen's file object would block and buffer.
            source = os.dup(self._journal.stdout.fileno())
        except (OSError, subprocess.TimeoutExpired):
            return None
        self._journal.stdout.close()
        os.set_blocking(source, False)
        return source

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()
