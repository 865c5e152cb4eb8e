"""The simulated engine: one process per container, started by the simulated `docker run`.

    python -m firesteel.edge.sim.process FOLDER ID

It follows `containers/ID.config`: prints the start-up lines at their times, takes simulated memory stage by
stage, then serves. The Spark's faults happen at their stage. It leaves its exit code behind; without one it
was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from firesteel.edge.host.process import this_process
from firesteel.edge.sim import containers, spark
from firesteel.edge.sim.batch import Batch, EngineSpeed
from firesteel.edge.sim.docker import KEY
from firesteel.edge.sim.server import SimServer
from firesteel.edge.sim.spark import SimFault, SimSpark, read_spark

NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)
"""As quoted in https://github.com/vllm-project/vllm/issues/56824, seen 2026-11-15."""
_TICK_S = 0.1
_REMOVED_S = 1.0
_STATS_S = 10.0


class SimulatedExit(Exception):
    """Ends the engine with an exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class SimEngine:
    def __init__(self, folder: Path, id: str) -> None:
        self.folder, self.id = folder, id
        self.config: Mapping[str, Any] = json.loads(containers.file_path(folder, id, "config").read_text())
        self.spark: SimSpark = read_spark(folder)
        self.faults: dict[str, SimFault] = {fault.kind: fault for fault in self.spark.faults}
        self.pid = this_process()
        self.started = time.monotonic()
        self.extra_bytes = 0
        self._held = 0
        self._before_collapse: tuple[int, int] | None = None
        """Bytes held, and bytes available, when the fault `memory-collapse` began."""
        self.batch = Batch(EngineSpeed.read(self.config["speed"]))
        key = self.config["key"] or os.environ.get(KEY) or None
        self.server = SimServer(self.config, self.batch, self.faults, key)

    async def run(self) -> int:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        running = asyncio.create_task(self._start_and_serve())
        stopping = asyncio.create_task(stop.wait())
        removing = asyncio.create_task(self._set_when_removed(stop))
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        removing.cancel()
        if running.done():
            stopping.cancel()
            return running.result()
        running.cancel()
        return 0

    async def _set_when_removed(self, stop: asyncio.Event) -> None:
        """A container whose Spark was deleted cannot be stopped: it ends by itself."""
        while containers.file_path(self.folder, self.id, "config").exists():
            await asyncio.sleep(_REMOVED_S)
        stop.set()

    async def _start_and_serve(self) -> int:
        # llama.cpp listens before the model is loaded, and answers 503.
        listens_early = self.config["engine"] == "llamacpp"
        try:
            if listens_early:
                await self._listen()
            for stage in self.config["stages"]:
                await self._run_stage(stage)
            if not listens_early:
                await self._listen()
            self.server.is_ready = True
            return await self._serve()
        except SimulatedExit as end:
            return end.code

    async def _listen(self) -> None:
        if self.config.get("headless"):  # a worker of several hosts: only the head has an HTTP server
            return
        runner = web.AppRunner(self.server.app(), access_log=None, handler_cancellation=True)
        await runner.setup()
        port = self.config["port"]
        for _, outside, inside in self.config["ports"] or [("", port, port)]:
            if inside == port:
                await web.TCPSite(runner, "127.0.0.1", outside).start()

    # --- starting ---

    async def _run_stage(self, stage: Mapping[str, Any]) -> None:
        before = self._held
        after = stage["bytes"] + self.extra_bytes
        if (large := self.faults.get("load-too-large")) and large.at == stage["name"]:
            self.extra_bytes += large.bytes
            after += large.bytes
        for line in stage["lines"]:
            self._print(line)
        self._crash_at(stage["name"])
        await self._grow(stage, before, after)
        for line in stage["end"]:
            self._print(line)

    async def _grow(self, stage: Mapping[str, Any], before: int, after: int) -> None:
        start, seconds = time.monotonic(), stage["seconds"]
        shown = -1
        # Memory grows during a stage, so that a guard sees it coming.
        while (spent := time.monotonic() - start) < seconds:
            share = spent / seconds
            self._hold(before + round((after - before) * share))
            if stage["bar"] and (done := int(share * 10)) != shown:
                shown = done
                self._print(_bar(stage["bar"], done))
            if share > 0.5:
                self._run_memory_faults(stage["name"])
            await asyncio.sleep(min(_TICK_S, seconds - spent))
        self._run_memory_faults(stage["name"])
        if stage["bar"]:
            self._print(_bar(stage["bar"], 10))
        self._hold(after)

    def _crash_at(self, stage: str, seconds: float = 0.0) -> None:
        """The fault `crash`, if it is due at this stage or after this long in service."""
        crash = self.faults.get("crash")
        if crash and crash.at == stage and (stage != "serving" or seconds >= crash.after):
            for line in crash.lines:
                self._print(line)
            raise SimulatedExit(crash.code)

    def _run_memory_faults(self, stage: str, seconds: float = 0.0) -> None:
        """Faults that happen once, in the middle of a stage or after this long in service."""
        actions = {"nv-no-memory": self._log_driver_error, "oom-kill": self._oom_kill}
        for kind, action in actions.items():
            fault = self.faults.get(kind)
            if fault and fault.at == stage and (stage != "serving" or seconds >= fault.after):
                del self.faults[kind]
                action()

    def _log_driver_error(self) -> None:
        for _ in range(3):
            spark.log_kernel_message(self.folder, NO_MEMORY)

    def _oom_kill(self) -> None:
        program = "llama-server" if self.config["engine"] == "llamacpp" else "VLLM::EngineCor"
        spark.log_kernel_message(
            self.folder,
            f"Out of memory: Killed process {self.pid.number} ({program}) total-vm:200000000kB, "
            "anon-rss:90000000kB, file-rss:0kB, shmem-rss:0kB",
        )
        os.kill(self.pid.number, signal.SIGKILL)

    # --- serving ---

    async def _serve(self) -> int:
        decoding = asyncio.create_task(self.batch.run())
        start = last_stats = time.monotonic()
        totals = (0, 0)
        while not decoding.done():
            seconds = time.monotonic() - start
            self._collapse_memory(seconds)
            self._crash_at("serving", seconds)
            self._run_memory_faults("serving", seconds)
            if time.monotonic() - last_stats >= _STATS_S:
                totals = self._print_stats(totals, time.monotonic() - last_stats)
                last_stats = time.monotonic()
            await asyncio.sleep(_TICK_S)
        decoding.result()
        return 1

    def _collapse_memory(self, seconds: float) -> None:
        """The fault `memory-collapse`: MemAvailable falls to the given value, linearly."""
        fault = self.faults.get("memory-collapse")
        if fault is None or seconds < fault.after:
            return
        if self._before_collapse is None:
            self._before_collapse = (self._held, spark.available_bytes(self.folder, self.spark))
        held, available = self._before_collapse
        share = min(1.0, (seconds - fault.after) / max(0.1, fault.seconds))
        self._hold(held + round(max(0, available - fault.bytes) * share))

    def _print_stats(self, before: tuple[int, int], seconds: float) -> tuple[int, int]:
        """vLLM prints its throughput every ten seconds. Returns the totals for the next time."""
        batch, counters = self.batch, self.batch.counters
        totals = (counters.prompt_tokens, counters.generated)
        if self.config["engine"] != "vllm" or (totals == before and not batch.running):
            return totals
        hit_percent = 100 * counters.cached_tokens / max(1, counters.prompt_tokens)
        self._print(
            "(APIServer pid=1) INFO {clock} [loggers.py:1] Engine 000: Avg prompt throughput: "
            f"{(totals[0] - before[0]) / seconds:.1f} tokens/s, Avg generation throughput: "
            f"{(totals[1] - before[1]) / seconds:.1f} tokens/s, Running: {len(batch.running)} reqs, "
            f"Waiting: {len(batch.waiting)} reqs, GPU KV cache usage: {100 * batch.pool_share:.1f}%, "
            f"Prefix cache hit rate: {hit_percent:.1f}%"
        )
        if counters.drafts:
            self._print(
                "(APIServer pid=1) INFO {clock} [edge/sim/server.py:1] SpecDecoding metrics: Mean acceptance "
                f"length: {1 + counters.accepted / counters.drafts:.2f}, "
                f"Avg Draft acceptance rate: {100 * counters.accepted / counters.drafted:.1f}%"
            )
        return totals

    # --- memory and log ---

    def _hold(self, size: int) -> None:
        if size != self._held:
            self._held = size
            spark.set_held_bytes(self.folder, self.pid, size)

    def _print(self, line: str) -> None:
        """Prints a line, and records its time and offset for `docker logs --since`."""
        spent = time.monotonic() - self.started
        ticks = (
            f"{int(spent // 60)}.{int(spent % 60):02}.{int(spent % 1 * 1000):03}.{int(spent * 1e6 % 1000):03}"
        )
        clock = time.strftime("%m-%d %H:%M:%S")
        line = line.replace("{clock}", clock).replace("{ticks}", ticks).replace("{pid}", str(self.pid.number))
        offset = containers.file_path(self.folder, self.id, "log").stat().st_size
        with containers.file_path(self.folder, self.id, "times").open("a") as times:
            times.write(f"{time.time()} {offset}\n")
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _bar(line: str, tenths: int) -> str:
    percent = 10 * tenths
    return line.replace("{percent:>3}", f"{percent:>3}").replace("{done}", str(tenths)).replace("{all}", "10")


def main(folder: Path, id: str) -> int:
    code = 1
    try:
        code = asyncio.run(SimEngine(folder, id).run())
    finally:
        containers.file_path(folder, id, "code").write_text(str(code))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
