"""One rank as the runner has it: its agent on a host, and the session that renews its lease."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from firesteel.errors import HostNotReady
from firesteel.hosts.cluster.nodes import Channel
from firesteel.hosts.cluster.ranks import RankSpec
from firesteel.hosts.cluster.watch import RankReport
from firesteel.values import InvalidValue, from_json

RENEW_S = 1.0
_ANSWER_S, _CONNECT_S = 3.0, 8.0
"""For a report, and for the first one of a session. What takes longer is tried again in a new session."""
STOP_S = 25.0


class Rank:
    """One rank: its agent, and the session that renews its lease."""

    def __init__(self, spec: RankSpec, channel: Channel, folder: str, log: Path) -> None:
        self.spec, self.channel, self.folder = spec, channel, folder
        self.reports: list[RankReport] = []
        self.is_started = False
        self.log, self._offset = log, 0
        self._session: asyncio.subprocess.Process | None = None

    @property
    def host(self) -> str:
        return self.spec.host

    def document(self, argv: tuple[str, ...]) -> str:
        spec = self.spec
        return json.dumps(
            {
                "argv": argv, "env": dict(spec.env), "stop": spec.stop, "rails": spec.rails,
                "peers": spec.peers,
                "lease_s": spec.lease_s, "grace_s": spec.grace_s, "floor_bytes": spec.floor_bytes,
                "reaper": self.channel.reaper,
            }
        )  # fmt: skip

    async def start(self) -> None:
        answer = await self.channel.ask(
            "agent", "start", self.folder, stdin=self.document(self.spec.argv).encode()
        )
        if "error" in answer:
            raise HostNotReady(f"{self.host}: {answer['error']}", next="firesteel cluster check")
        self.is_started = True

    async def stop(self) -> dict[str, Any]:
        return await self.channel.ask("agent", "stop", self.folder, str(STOP_S), timeout_s=STOP_S + 15)

    async def watch(self) -> None:
        """Renew the lease and collect reports until cancelled; a session that ends is opened again."""
        while True:
            with suppress(OSError, asyncio.TimeoutError, ValueError):
                await self._watch_session()
            await self._close()
            await asyncio.sleep(RENEW_S / 2)

    async def _watch_session(self) -> None:
        argv = self.channel.session_argv("agent", "watch", self.folder, str(self._offset))
        session = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=2**22,
        )  # fmt: skip
        self._session = session
        assert session.stdin and session.stdout
        limit_s = _CONNECT_S
        while True:
            session.stdin.write(b"renew\n")
            await session.stdin.drain()
            # Not `wait_for`, which in Python 3.11 forgets a cancellation that comes together with the line.
            async with asyncio.timeout(limit_s):
                line = await session.stdout.readline()
            if not line:
                return
            self._note(json.loads(line))
            limit_s = _ANSWER_S  # TCP waits longer and longer: a new session is there sooner
            await asyncio.sleep(RENEW_S)

    def _note(self, document: dict[str, Any]) -> None:
        self._offset = document.pop("offset")
        if text := document.pop("log"):
            with suppress(OSError):
                self._append(text)
        with suppress(InvalidValue):
            self.reports.append(from_json(RankReport, document))

    def _append(self, text: str) -> None:
        if self.channel.target is None:  # the head's words are the engine's log, which all commands read
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        with self.log.open("a", encoding="utf-8") as log:
            log.write(text)

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session and session.returncode is None:
            session.kill()
            with suppress(ProcessLookupError):
                await session.wait()

    def take_report(self) -> RankReport | None:
        latest = self.reports[-1] if self.reports else None
        self.reports.clear()
        return latest
