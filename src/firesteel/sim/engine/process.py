"""The pretend engine: one process a container, started by the pretend `docker run`.

    python -m firesteel.sim.engine.process FOLDER ID

It plays the order in `containers/ID.order`: says the start-up lines at their times, takes memory in the
ledger as the stages do, then serves. Faults of the world strike at their stage. It leaves its exit code
behind; one that left none was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from firesteel.edge.host.process import this_process
from firesteel.sim import memory
from firesteel.sim.docker import records
from firesteel.sim.docker.cli import KEY
from firesteel.sim.engine.batch import Batch, EngineSpeed
from firesteel.sim.engine.server import SimServer
from firesteel.sim.spark import SimFault, SimSpark, read_spark

NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)
"""As quoted in https://github.com/vllm-project/vllm/issues/56824, seen 2026-11-15."""
_TICK_S = 0.1
_STATS_S = 10.0


class Ended(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Engine:
    def __init__(self, folder: Path, id: str) -> None:
        self.folder, self.id = folder, id
        self.order: Mapping[str, Any] = json.loads((folder / "containers" / f"{id}.order").read_text())
        self.world: SimSpark = read_spark(folder)
        self.faults: dict[str, SimFault] = {fault.kind: fault for fault in self.world.faults}
        self.pid = this_process()
        self.started = time.monotonic()
        self.extra_bytes = 0
        self.log = records.log_path(folder, id)
        self.batch = Batch(EngineSpeed.read(self.order["pace"]))
        key = self.order["key"] or os.environ.get(KEY) or None
        self.server = SimServer(self.order, self.batch, self.faults, key)

    async def run(self) -> int:
        told = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        life = asyncio.create_task(self._live())
        waiting = asyncio.create_task(told.wait())
        await asyncio.wait({life, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            waiting.cancel()
            return life.result()
        life.cancel()
        return 0

    async def _live(self) -> int:
        """HTTP of llama.cpp is there before the model is, and answers 503."""
        early = self.order["engine"] == "llamacpp"
        try:
            if early:
                await self._listen()
            for stage in self.order["stages"]:
                await self._stage(stage)
        except Ended as end:
            return end.code
        if not early:
            await self._listen()
        self.server.is_ready = True
        return await self._serve()

    async def _listen(self) -> None:
        runner = web.AppRunner(self.server.app(), access_log=None, handler_cancellation=True)
        await runner.setup()
        for _, outside, inside in self.order["ports"] or [("", self.order["listens"], self.order["listens"])]:
            if inside == self.order["listens"]:
                await web.TCPSite(runner, "127.0.0.1", outside).start()

    # --- starting ---

    async def _stage(self, stage: Mapping[str, Any]) -> None:
        before = self._held
        after = stage["bytes"] + self.extra_bytes
        if (large := self.faults.get("load-too-large")) and large.at == stage["name"]:
            self.extra_bytes += large.bytes
            after += large.bytes
        for line in stage["lines"]:
            self._say(line)
        self._strike(stage["name"])
        await self._grow(stage, before, after)
        for line in stage["end"]:
            self._say(line)

    async def _grow(self, stage: Mapping[str, Any], before: int, after: int) -> None:
        start, seconds = time.monotonic(), stage["seconds"]
        shown = -1
        while (spent := time.monotonic() - start) < seconds:
            share = spent / seconds
            self._hold(before + round((after - before) * share))
            if stage["bar"] and (done := int(share * 10)) != shown:
                shown = done
                self._say(_bar(stage["bar"], done))
            if share > 0.5:
                self._strike_midway(stage["name"])
            await asyncio.sleep(min(_TICK_S, seconds - spent))
        self._strike_midway(stage["name"])
        if stage["bar"]:
            self._say(_bar(stage["bar"], 10))
        self._hold(after)

    def _strike(self, stage: str) -> None:
        """What goes wrong as a stage begins."""
        crash = self.faults.get("crash")
        if crash and crash.at == stage:
            for line in crash.lines:
                self._say(line)
            raise Ended(crash.code)

    def _strike_midway(self, stage: str) -> None:
        """What goes wrong in the middle of one, once."""
        for kind, strike in self._midway.items():
            fault = self.faults.get(kind)
            if fault and fault.at == stage:
                del self.faults[kind]
                strike()

    @property
    def _midway(self) -> Mapping[str, Callable[[], None]]:
        return {"nv-no-memory": self._driver_fails, "oom-kill": self._is_killed}

    def _driver_fails(self) -> None:
        for _ in range(3):
            memory.log_kernel_message(self.folder, NO_MEMORY)

    def _is_killed(self) -> None:
        program = "llama-server" if self.order["engine"] == "llamacpp" else "VLLM::EngineCor"
        memory.log_kernel_message(
            self.folder,
            f"Out of memory: Killed process {self.pid.number} ({program}) total-vm:200000000kB, "
            "anon-rss:90000000kB, file-rss:0kB, shmem-rss:0kB",
        )
        os.kill(self.pid.number, signal.SIGKILL)

    # --- serving ---

    async def _serve(self) -> int:
        decoding = asyncio.create_task(self.batch.run())
        began, shown, seen = time.monotonic(), time.monotonic(), (0, 0)
        serving = self.faults.get("crash")
        while not decoding.done():
            spent = time.monotonic() - began
            self._collapse(spent)
            if serving and serving.at == "serving" and spent >= serving.after:
                for line in serving.lines:
                    self._say(line)
                return serving.code
            for kind, strike in self._midway.items():
                fault = self.faults.get(kind)
                if fault and fault.at == "serving" and spent >= fault.after:
                    del self.faults[kind]
                    strike()
            if time.monotonic() - shown >= _STATS_S:
                seen = self._stats(seen, time.monotonic() - shown)
                shown = time.monotonic()
            await asyncio.sleep(_TICK_S)
        decoding.result()
        return 1

    def _collapse(self, spent: float) -> None:
        """MemAvailable goes to what the fault says, in a straight line."""
        fault = self.faults.get("memory-collapse")
        if fault is None or spent < fault.after:
            return
        if not self._before_collapse:
            self._before_collapse = self._held
            self._left = memory.available_bytes(self.folder, self.world)
        share = min(1.0, (spent - fault.after) / max(0.1, fault.seconds))
        self._hold(self._before_collapse + round(max(0, self._left - fault.bytes) * share))

    def _stats(self, seen: tuple[int, int], seconds: float) -> tuple[int, int]:
        """vLLM tells every ten seconds how it fares."""
        counted, batch = self.batch.counted, self.batch
        now = (counted.prompt_tokens, counted.generated)
        if self.order["engine"] != "vllm" or (now == seen and not batch.running):
            return now
        hits = 100 * counted.cached_tokens / max(1, counted.prompt_tokens)
        self._say(
            "(APIServer pid=1) INFO {clock} [loggers.py:1] Engine 000: Avg prompt throughput: "
            f"{(now[0] - seen[0]) / seconds:.1f} tokens/s, Avg generation throughput: "
            f"{(now[1] - seen[1]) / seconds:.1f} tokens/s, Running: {len(batch.running)} reqs, "
            f"Waiting: {len(batch.waiting)} reqs, GPU KV cache usage: {100 * batch.pool_share:.1f}%, "
            f"Prefix cache hit rate: {hits:.1f}%"
        )
        if counted.drafts:
            self._say(
                "(APIServer pid=1) INFO {clock} [metrics.py:1] SpecDecoding metrics: Mean acceptance "
                f"length: {1 + counted.accepted / counted.drafts:.2f}, "
                f"Avg Draft acceptance rate: {100 * counted.accepted / counted.drafted:.1f}%"
            )
        return now

    # --- memory and words ---

    _held = 0
    _before_collapse = 0
    _left = 0

    def _hold(self, size: int) -> None:
        if size != self._held:
            self._held = size
            memory.set_held_bytes(self.folder, self.pid, size)

    def _say(self, line: str) -> None:
        """Its log, and beside it when each line came, for `docker logs --since`."""
        spent = time.monotonic() - self.started
        ticks = (
            f"{int(spent // 60)}.{int(spent % 60):02}.{int(spent % 1 * 1000):03}.{int(spent * 1e6 % 1000):03}"
        )
        clock = time.strftime("%m-%d %H:%M:%S")
        words = (
            line.replace("{clock}", clock).replace("{ticks}", ticks).replace("{pid}", str(self.pid.number))
        )
        with records.times_path(self.folder, self.id).open("a") as times:
            times.write(f"{time.time()} {self.log.stat().st_size}\n")
        sys.stdout.write(f"{words}\n")
        sys.stdout.flush()


def _bar(line: str, tenths: int) -> str:
    percent = 10 * tenths
    return line.replace("{percent:>3}", f"{percent:>3}").replace("{done}", str(tenths)).replace("{all}", "10")


def main(folder: Path, id: str) -> int:
    code = 1
    try:
        code = asyncio.run(Engine(folder, id).run())
    finally:
        records.code_path(folder, id).write_text(str(code))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
