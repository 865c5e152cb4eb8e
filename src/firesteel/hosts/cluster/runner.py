"""The runner: the process that a supervisor starts in place of an engine, for a service over several hosts.

    python -m firesteel.hosts.cluster.runner FOLDER -- COMMAND...

COMMAND is what rank 0 runs here; `ranks.json` in FOLDER has the rest. The runner stops what an earlier run
left on any host, starts the workers, waits until they can be reached, starts the head, renews every rank's
lease and ends when one is lost: with all of them, and with a sentence that says why (`why.txt`). Its
supervisor starts it again. It never starts a single rank again: the others would not take it back.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

from firesteel.edge.files import state_file
from firesteel.edge.files.home import Home, write_text
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.hosts.cluster.channel import NODE_FOLDER, Channel, channel_of
from firesteel.hosts.cluster.nodes import all_nodes
from firesteel.hosts.cluster.ranks import ClusterSpec, RankSpec
from firesteel.hosts.cluster.watch import ClusterWatch, RankReport
from firesteel.run.cluster_status import ClusterStatus, NodeStatus, write_status
from firesteel.run.service import WHY_FILE
from firesteel.typed_json import InvalidValue, from_json
from firesteel.units import show_bytes

RENEW_S = 1.0
_ANSWER_S, _CONNECT_S = 3.0, 8.0
"""For a report, and for the first one of a session. What takes longer is tried again in a new session."""
_STOP_S = 25.0
_LISTEN_S = 60.0
_RETRY_S = 2.0
_MEMORY_BACK_S = 15.0


class Rank:
    """One rank: its agent, and the session that renews its lease."""

    def __init__(self, spec: RankSpec, channel: Channel, folder: str, log: Path) -> None:
        self.spec, self.channel, self.folder = spec, channel, folder
        self.reports: list[RankReport] = []
        self.is_started = False
        self._log, self._offset = log, 0
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
        return await self.channel.ask("agent", "stop", self.folder, str(_STOP_S), timeout_s=_STOP_S + 15)

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
            line = await asyncio.wait_for(session.stdout.readline(), limit_s)
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
        if self.channel.target is None:  # the head's words are the engine's log, which everybody reads
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        with self._log.open("a", encoding="utf-8") as log:
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


class Runner:
    def __init__(self, folder: Path, head_argv: tuple[str, ...]) -> None:
        spec = state_file.read_state(folder / "ranks.json", ClusterSpec)
        if spec is None:
            raise FiresteelError(f"{folder}/ranks.json cannot be read", next="firesteel down, then up again")
        self.folder, self.spec, self.head_argv = folder, spec, head_argv
        home = Home(folder.parent.parent)
        nodes = {node.name: node for node in all_nodes(home)}
        (folder / "ranks").mkdir(mode=0o700, exist_ok=True)
        self.head = Rank(
            spec.ranks[0], Channel(spec.ranks[0].host), str(folder / "rank0"), folder / "engine.log"
        )
        self.workers = [self._worker(home, rank, nodes) for rank in spec.ranks[1:]]
        self.holder: asyncio.subprocess.Process | None = None
        self.notices: list[str] = []
        self.available: dict[str, int] = {}

    def _worker(self, home: Home, rank: RankSpec, nodes: dict[str, Any]) -> Rank:
        if rank.host not in nodes:
            raise FiresteelError(
                f"{rank.host} is no longer a node", next=f"firesteel cluster add {rank.host}"
            )
        log = self.folder / "ranks" / f"{rank.host}.log"
        folder = f"{NODE_FOLDER}/ranks/{self.spec.name}"
        return Rank(rank, channel_of(home, nodes[rank.host]), folder, log)

    @property
    def ranks(self) -> list[Rank]:
        return [self.head, *self.workers]

    def say(self, text: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        self.notices.append(f"{stamp} {text}")
        print(f"cluster: {stamp} {text}", flush=True)

    async def run(self) -> int:
        watches: list[asyncio.Task[None]] = []
        try:
            await self._clear()
            await self._start_workers(watches)
            await self._start_head(watches)
            why = await self._until_lost()
        except asyncio.CancelledError:
            why = None
        except FiresteelError as error:
            why = error.what
        for task in watches:  # a rank that is being stopped is not watched: its end is no loss
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        if why:
            self.say(why)
            write_text(self.folder / WHY_FILE, why)
        self._write(phase="stopping", why=why)
        await self._stop_all()
        self._write(phase="ended", why=why)
        return 1 if why else 0

    async def _clear(self) -> None:
        """What an earlier run left: a worker whose lease has not run out yet."""
        (self.folder / WHY_FILE).unlink(missing_ok=True)
        self._write(phase="starting")
        for rank in self.workers:
            (self.folder / "ranks" / f"{rank.host}.log").write_text("")
        await _all([self._prepare(rank) for rank in self.workers])
        await self.head.stop()

    async def _prepare(self, rank: Rank) -> None:
        answer = await self._until_reached(rank)
        if not answer["is_stopped"]:
            raise HostNotReady(f"{rank.host}: a rank of an earlier run does not end", next="")
        self.available[rank.host] = answer["available_bytes"]

    async def _until_reached(self, rank: Rank) -> dict[str, Any]:
        """Starts are counted and few: none is spent on a node that does not answer. It may come back."""
        problem = ""
        while True:
            try:
                await rank.channel.prepare()
                return await rank.stop()
            except (FiresteelError, TimeoutError) as error:
                what = getattr(error, "what", f"{rank.host} does not answer in time")
            if what != problem:
                problem = what
                self.say(f"{what}; waiting for it")
                self._write(phase="waiting", why=what)
            await asyncio.sleep(_RETRY_S)

    async def _start_workers(self, watches: list[asyncio.Task[None]]) -> None:
        await _all([rank.start() for rank in self.workers])
        for rank in self.workers:
            self.say(f"{rank.host}: rank {rank.spec.rank} is started")
            watches.append(asyncio.create_task(rank.watch()))
        await _all([self._reachable(rank) for rank in self.workers])

    async def _reachable(self, rank: Rank) -> None:
        """Until the worker listens on its address of the link, or has ended."""
        if rank.spec.listens is None:
            return
        address, port = rank.spec.listens
        deadline = time.monotonic() + _LISTEN_S
        silent = 0
        while time.monotonic() < deadline:
            report = rank.reports[-1] if rank.reports else None
            if report and not report.is_alive:
                raise HostNotReady(f"{rank.host}: its rank ended: {report.why or report.exit}", next="")
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), 2)
                writer.close()
                self.say(f"{rank.host}: rank {rank.spec.rank} answers on {address}:{port}")
                return
            except TimeoutError:  # not refused: something swallows the packets
                silent += 1
                if silent > 3:
                    break
            except OSError:
                await asyncio.sleep(0.1)
        raise HostNotReady(
            f"{rank.host}: nothing answers on {address}:{port} although its rank runs: a firewall?",
            next="",
        )

    async def _start_head(self, watches: list[asyncio.Task[None]]) -> None:
        """As a child: what the supervisor sees of this process and its children includes the engine."""
        folder = Path(self.head.folder)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_text(folder / "rank.json", self.head.document(self.head_argv))
        for name in ("state.json", "stop"):
            (folder / name).unlink(missing_ok=True)
        (folder / "engine.log").write_text("")
        (folder / "lease").touch(mode=0o600)
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.utime(folder / "lease", (boot_s, boot_s))
        self.holder = await asyncio.create_subprocess_exec(
            *self.head.channel.argv("agent", "hold", str(folder), str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while not (folder / "state.json").exists() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.head.is_started = True
        self.say(f"{self.head.host}: rank 0 is started")
        watches.append(asyncio.create_task(self.head.watch()))

    async def _until_lost(self) -> str:
        watch = ClusterWatch.begin(tuple(rank.host for rank in self.ranks), time.monotonic())
        while True:
            latest = {rank.host: rank.take_report() for rank in self.ranks}
            reports = {host: report for host, report in latest.items() if report}
            watch, happened = watch.after(time.monotonic(), reports)
            for notice in happened.notices:
                self.say(notice)
            self._write(watch=watch, phase="running")
            if happened.loss:
                return happened.loss
            await asyncio.sleep(RENEW_S / 2)

    async def _stop_all(self) -> None:
        """All at once. One that does not answer ends itself when its lease runs out."""
        for rank, answer in zip(
            self.ranks, await asyncio.gather(*map(self._stop_rank, self.ranks)), strict=True
        ):
            if answer:
                self.say(f"{rank.host}: {answer}")
        if self.holder:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.holder.wait(), _STOP_S)

    async def _stop_rank(self, rank: Rank) -> str:
        if rank is self.head and not rank.is_started:
            return ""
        try:
            answer = await asyncio.wait_for(rank.stop(), _STOP_S + 20)
        except (FiresteelError, TimeoutError) as error:
            lease = f"its rank ends by itself within {rank.spec.lease_s:.0f} s, when its lease runs out"
            return f"{getattr(error, 'what', 'no answer')}; {lease}"
        if not answer["is_stopped"]:
            return "its rank does not end"
        back = answer["available_bytes"] - answer["before_bytes"]
        freed = f", {show_bytes(back)} are free again" if back > 2**20 else ""
        return f"rank {rank.spec.rank} has stopped{freed}" if answer["was"] else ""

    def _write(self, phase: str, watch: ClusterWatch | None = None, why: str | None = None) -> None:
        states = {rank.host: rank for rank in watch.ranks} if watch else {}
        nodes = []
        for rank in self.ranks:
            seen = states.get(rank.host)
            report = seen.report if seen else None
            nodes.append(
                NodeStatus(
                    host=rank.host,
                    rank=rank.spec.rank,
                    phase=_phase(phase, rank, report, bool(seen and seen.is_told)),
                    pid=report.pid if report else None,
                    resident_bytes=report.resident_bytes if report else 0,
                    available_bytes=report.available_bytes if report else 0,
                    log=str(self.folder / "ranks" / f"{rank.host}.log")
                    if rank is not self.head
                    else str(self.folder / "engine.log"),
                )
            )
        with suppress(OSError, HostNotReady):
            status = ClusterStatus(phase, why, self.spec.transport, tuple(nodes), tuple(self.notices[-20:]))
            write_status(self.folder, status)


def _phase(phase: str, rank: Rank, report: RankReport | None, is_told: bool) -> str:
    if phase != "running":
        return phase
    if is_told:
        return "silent"
    return "running" if report and report.is_alive else "ended" if report else "starting"


async def _all(waits: list[Awaitable[None]]) -> None:
    """All at once; the first failure, once all have ended: nothing is left half started behind our back."""
    for result in await asyncio.gather(*waits, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _main(folder: Path, head_argv: tuple[str, ...]) -> int:
    try:
        runner = Runner(folder, head_argv)
    except FiresteelError as error:
        write_text(folder / WHY_FILE, error.what)
        print(f"cluster: {error.what}", flush=True)
        return 1
    task = asyncio.ensure_future(runner.run())
    loop = asyncio.get_running_loop()
    is_asked: list[bool] = []

    def ask() -> None:
        if not is_asked:
            is_asked.append(True)
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    return await task


if __name__ == "__main__":
    separator = sys.argv.index("--")
    sys.exit(asyncio.run(_main(Path(sys.argv[1]), tuple(sys.argv[separator + 1 :]))))
