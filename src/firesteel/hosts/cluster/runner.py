"""The runner: the process that a supervisor starts in place of an engine, for a service over several hosts.

    python -m firesteel.hosts.cluster.runner FOLDER -- COMMAND...

COMMAND is what rank 0 runs here; `ranks.json` in FOLDER has the rest. The runner stops what an earlier run
left on any host, starts the workers, waits until they can be reached, starts the head, renews every rank's
lease and ends when one is lost: with all of them, and with a sentence that says why (`why.txt`). Its
supervisor starts it again. It never starts a single rank again: the others would not take it back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

from firesteel.edge.home import Home, read_state, write_text
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.hosts.cluster.nodes import NODE_FOLDER, Channel, all_nodes, channel_of
from firesteel.hosts.cluster.rank import RENEW_S, STOP_S, Rank
from firesteel.hosts.cluster.ranks import ClusterSpec, RankSpec
from firesteel.hosts.cluster.watch import ClusterWatch, RankReport
from firesteel.run.service import WHY_FILE, ClusterStatus, NodeStatus, write_status
from firesteel.run.supervise.exits import AGAIN_CODE
from firesteel.units import show_bytes
from firesteel.values import replace

_LISTEN_S = 60.0
_RETRY_S = 2.0


class _NodesAreBack(Exception):
    """While the fallback is served."""


class Runner:
    def __init__(self, folder: Path, head_argv: tuple[str, ...]) -> None:
        spec = read_state(folder / "ranks.json", ClusterSpec)
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
        self.watches: list[asyncio.Task[None]] = []
        self.notices: list[str] = []
        self.is_fallback = False
        self.is_stopping = False
        """What is being stopped is stopped completely, whatever is requested meanwhile."""

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
        is_again = False
        try:
            await self._clear()
            await self._start_workers()
            await self._hold_head(self.head.spec, self.head_argv)
            self.say(f"{self.head.host}: rank 0 is started")
            why = await self._until_lost()
        except asyncio.CancelledError:
            why = None
        except FiresteelError as error:
            why = error.what
        except _NodesAreBack:
            why, is_again = "every node answers again: all ranks are started", True
        self.is_stopping = True
        for task in self.watches:  # a rank that is being stopped is not watched: its end is expected
            task.cancel()
        await asyncio.gather(*self.watches, return_exceptions=True)
        if why:
            self.say(why)
            write_text(self.folder / WHY_FILE, why)
        self._write(phase="stopping", why=why)
        await self._stop_all()
        self._write(phase="ended", why=why)
        return AGAIN_CODE if is_again else 1 if why else 0

    async def _clear(self) -> None:
        """What an earlier run left: a worker whose lease has not run out yet."""
        (self.folder / WHY_FILE).unlink(missing_ok=True)
        self._write(phase="starting")
        for rank in self.workers:
            rank.log.write_text("")
        await _all([self._prepare(rank) for rank in self.workers])
        if self.is_fallback:
            raise _NodesAreBack
        await self.head.stop()

    async def _prepare(self, rank: Rank) -> None:
        """Starts are counted and few: none is spent on a node that does not answer. It may come back."""
        problem = ""
        while True:
            try:
                await rank.channel.prepare()
                answer = await rank.stop()
                break
            except (FiresteelError, TimeoutError) as error:
                what = getattr(error, "what", f"{rank.host} does not answer in time")
            if what != problem:
                problem = what
                self.say(f"{what}; waiting for it")
                await self._serve_fallback()
            self._write(phase="fallback" if self.is_fallback else "waiting", why=what)
            await asyncio.sleep(_RETRY_S)
        if not answer["is_stopped"]:
            raise HostNotReady(f"{rank.host}: a rank of an earlier run does not end", next="")

    async def _serve_fallback(self) -> None:
        """Meanwhile, on this host alone. It ends when every node answers."""
        fallback = self.spec.fallback
        if fallback is None or self.is_fallback:
            return
        self.is_fallback = True
        await self.head.stop()
        spec = replace(self.head.spec, env=fallback.env, stop=fallback.stop)
        await self._hold_head(spec, fallback.argv)
        self.say(f"{self.head.host}: {fallback.recipe} is served by this host alone meanwhile")

    async def _start_workers(self) -> None:
        await _all([rank.start() for rank in self.workers])
        for rank in self.workers:
            self.say(f"{rank.host}: rank {rank.spec.rank} is started")
            self.watches.append(asyncio.create_task(rank.watch()))
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
                async with asyncio.timeout(2):
                    _, writer = await asyncio.open_connection(address, port)
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

    async def _hold_head(self, spec: RankSpec, argv: tuple[str, ...]) -> None:
        """As a child: what the supervisor sees of this process and its children includes the engine."""
        self.head.spec = spec
        folder = Path(self.head.folder)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_text(folder / "rank.json", self.head.document(argv))
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
        self.watches.append(asyncio.create_task(self.head.watch()))

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
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self.holder.wait()

    async def _stop_rank(self, rank: Rank) -> str:
        if rank is self.head and not rank.is_started:
            return ""
        try:
            async with asyncio.timeout(STOP_S + 20):
                answer = await rank.stop()
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
            report = seen.report if seen else rank.take_report()
            nodes.append(
                NodeStatus(
                    host=rank.host,
                    rank=rank.spec.rank,
                    phase=_phase(phase, rank, report, bool(seen and seen.is_told)),
                    pid=report.pid if report else None,
                    resident_bytes=report.resident_bytes if report else 0,
                    available_bytes=report.available_bytes if report else 0,
                    log=str(rank.log),
                )
            )
        with suppress(OSError, HostNotReady):
            status = ClusterStatus(phase, why, self.spec.transport, tuple(nodes), tuple(self.notices[-20:]))
            write_status(self.folder, status)


def _phase(phase: str, rank: Rank, report: RankReport | None, is_told: bool) -> str:
    if phase == "fallback" and rank.spec.rank:
        return "waiting"
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

    def ask() -> None:
        if not task.cancelling() and not runner.is_stopping:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ask)
    return await task


if __name__ == "__main__":
    separator = sys.argv.index("--")
    sys.exit(asyncio.run(_main(Path(sys.argv[1]), tuple(sys.argv[separator + 1 :]))))
