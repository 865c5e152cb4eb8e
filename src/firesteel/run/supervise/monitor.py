"""Watch one run of an engine: its memory, its health, its hangs, and its verification after a restart."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from firesteel.edge.docker.containers import container_pid
from firesteel.edge.home import Home
from firesteel.edge.host.memory import KernelLog, own_oom_kills, sample
from firesteel.edge.host.process import MemoryFile, tree_activity, uptime
from firesteel.edge.http.sync_client import HealthPoller
from firesteel.engines.metrics import activity
from firesteel.run.service import ServiceSpec, ServiceState, all_services, api_key
from firesteel.run.supervise import guard, hang
from firesteel.run.supervise.disk_writer import DiskWriter
from firesteel.run.supervise.exits import ExitKind, OomCounts, killed_for_memory
from firesteel.values import Value, replace

_SAMPLE_S = 1.0
_SIGNAL_S = 0.1
"""How soon a request to stop is seen."""
_HEALTH_S, _METRICS_S = 2.0, 5.0
"""How often the engine is asked."""


class StopReason(Value):
    """Why the supervisor stops an engine that would go on."""

    kind: ExitKind
    text: str
    is_urgent: bool = False
    is_fatal: bool = False


class EngineMonitor:
    """Samples the host and the engine once a second; after a restart, has the engine verified."""

    def __init__(
        self,
        spec: ServiceSpec,
        state: ServiceState,
        engine: subprocess.Popen[bytes],
        writer: DiskWriter,
        start_verify: Callable[[Path, int], subprocess.Popen[bytes]],
    ) -> None:
        self.folder, self.spec, self.state, self.engine = writer.folder, spec, state, engine
        self._writer, self._start_verify = writer, start_verify
        limits = guard.GuardLimits(spec.memory_floor_bytes, spec.expected_bytes, spec.available_bytes or None)
        self._guard = guard.MemoryWatch(limits)
        self._kernel = KernelLog()
        self._oom_before = OomCounts.of(sample(self._kernel), own_oom_kills())
        self._held_bytes: int | None = None
        self._idle = hang.IdleTime()
        self._frozen = hang.FrozenTime()
        interval_s, metrics_s = _HEALTH_S * spec.time_share, _METRICS_S * spec.time_share
        # A container's processes are not those of the `docker run` that is our child.
        find_pid = partial(container_pid, spec.name) if spec.stop else lambda: engine.pid
        self._poll = HealthPoller(spec.url, api_key(spec), interval_s, metrics_s, find_pid, spec.health)
        self._poll.start()
        self._verify: subprocess.Popen[bytes] | None = None
        self._verify_output: MemoryFile | None = None
        self._verify_failures = 0
        self._blind: str | None = None
        """Why the last look failed."""

    def close(self) -> None:
        self._kernel.close()
        self._poll.stop()
        if self._verify and self._verify.poll() is None:
            self._verify.kill()
            self._verify.wait()
        self._end_verify()

    def run(self, check_signalled: Callable[[], None]) -> StopReason | None:
        """Until the engine ends (None) or has to be stopped. `check_signalled` raises to end it, too."""
        self._writer.write(self.state)
        while True:
            look_at = time.monotonic() + _SAMPLE_S
            while time.monotonic() < look_at:
                with suppress(subprocess.TimeoutExpired):
                    self.engine.wait(timeout=_SIGNAL_S)
                    return self._kernel_kill()
                check_signalled()
            if reason := self._look():
                return reason

    def _look(self) -> StopReason | None:
        """A look that fails, as without free file handles, is not a reason to end an engine."""
        state, blind, reason = self.state, None, None
        try:
            reason = self._check()
        except OSError as error:
            blind = f"the engine cannot be watched: {error.strerror}"
        if blind and blind != self._blind:
            self._writer.note(blind)
        self._blind = blind
        if self.state is not state:
            self._writer.write(self.state)
        return reason

    def _kernel_kill(self) -> StopReason | None:
        """Whether an engine that ended was killed by the kernel because memory ran out."""
        if self.engine.returncode not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return None
        seen = sample(self._kernel)
        stop = self._guard.after(seen).stop
        if stop and stop.kind == "oom":
            return StopReason("guard", stop.why)
        counts = OomCounts.of(seen, own_oom_kills())
        why = killed_for_memory(
            self._oom_before, counts, self._held_bytes, seen.memory, is_container=bool(self.spec.stop)
        )
        return StopReason("guard", why) if why else None  # the next one would end in the same way

    def _check(self) -> StopReason | None:
        printed = len(self._guard.notes)
        self._guard = self._guard.after(sample(self._kernel))
        was_verified = (self.folder / "report.json").exists()
        if self._guard.stop and was_verified and self._another_loads():
            self._guard = self._guard.while_another_loads()
        for note in self._guard.notes[printed:]:
            self._writer.note(f"guard: {note}")
        if stop := self._guard.stop:
            return StopReason("guard", stop.why, stop.is_urgent)
        if why := self._freeze(was_verified):
            return StopReason("stuck", why, is_urgent=True)  # what is frozen handles no SIGTERM
        # Only a verified engine can hang: while it starts it may be silent for long.
        if was_verified and (why := self._hang()):
            return StopReason("stuck", why)
        return None if self.state.is_proved else self._check_verification()

    def _another_loads(self) -> bool:
        try:
            services = all_services(Home(self.folder.parent.parent))
        except OSError:
            return False  # not known, and the guard must be obeyed
        return any(other.phase == "starting" and other.name != self.spec.name for other in services)

    def _freeze(self, was_verified: bool) -> str | None:
        """Also notes for `ps` what seems to hang. By the real clock, on a simulated Spark too."""
        answered_at = self._poll.answered_at if was_verified else None
        pid = self._poll.pid if self.spec.stop else self.engine.pid
        tree = tree_activity(pid) if pid else None
        cpu_s, is_stopped = (tree.cpu_s, tree.is_stopped) if tree else (None, False)
        self._held_bytes = tree.resident_bytes if tree else self._held_bytes
        self._frozen = self._frozen.after(hang.ProcessReading(uptime(), answered_at, cpu_s, is_stopped))
        if self._frozen.notice != self.state.hang:
            self.state = replace(self.state, hang=self._frozen.notice)
        return self._frozen.reason

    def _hang(self) -> str | None:
        metrics, share = self._poll.metrics, self.spec.time_share
        if metrics is None or metrics[0] / share <= self._idle.now_s:
            return None
        at_s, text = metrics
        current = activity(self.spec.engine, text) if text is not None else None
        # A GPU engine that hangs may poll in a loop, so that its CPU time means nothing.
        cpu_s = None if self.spec.stop else self._frozen.read_cpu_s
        self._idle = self._idle.after(hang.ActivityReading(at_s / share, current, cpu_s))
        return self._idle.reason(self.spec.prefill_s)

    def _check_verification(self) -> StopReason | None:
        """Run `firesteel verify` once the engine answers, and act on its result."""
        if self.spec.is_command:
            if self._poll.is_healthy:
                self.state = replace(self.state, is_proved=True, why=None)
            return None
        if self._verify is None:
            if self._poll.is_healthy:
                self._verify = self._begin_verify()
            return None
        code = self._verify.poll()
        if code is None:
            return None
        output = self._end_verify()
        if code and (failed := _failed_checks(output)):
            why = f"its answers were wrong after a restart ({'; '.join(failed)}); see supervisor.log"
            return StopReason("died", why, is_fatal=True)
        if (
            code
        ):  # no result: it was killed, ran out of time, got no answer, or the system refused it something
            self._verify, self._verify_failures = None, self._verify_failures + 1
            why = "it could not be verified after a restart"
            return StopReason("stuck", why) if self._verify_failures > 2 else None
        self.state = replace(self.state, is_proved=True, why=None)
        return None

    def _begin_verify(self) -> subprocess.Popen[bytes]:
        """It prints into memory: where a disk is full, its output must not decide."""
        output = MemoryFile("verify")
        try:
            verify = self._start_verify(self.folder, output.fileno())
        except OSError:
            output.close()
            raise
        self._verify_output = output
        return verify

    def _end_verify(self) -> str:
        """What it printed, which goes to supervisor.log."""
        if self._verify_output is None:
            return ""
        text = self._verify_output.read().decode(errors="replace").rstrip()
        self._verify_output.close()
        self._verify_output = None
        self._writer.note(text)
        return text


def _failed_checks(output: str) -> list[str]:
    """Of `verify --json`, whose document comes after its progress; none if it came to no verdict."""
    try:
        document = json.loads(output[output.rfind("\n{") + 1 :])
    except ValueError:
        return []
    checks = document.get("checks", ()) if isinstance(document, dict) else ()
    return [
        f"{check['name']}: {check['observed']}"
        for check in checks
        if check["level"] == "gate" and not check["passed"]
    ]
