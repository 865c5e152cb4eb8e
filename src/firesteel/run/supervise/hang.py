"""Detect a hung engine from its metrics, and a frozen one from its processes. Pure.

    IdleTime().after(reading).after(reading).reason(prefill_s) -> why it hangs, or None
    FrozenTime().after(reading).after(reading).notice, .reason -> what is seen, and why it must end, or None

Engines hang while `/health` returns 200 (https://github.com/vllm-project/vllm/issues/41725, seen 2026-11-15).
So what counts is work: there are requests, but for a while no token, no call of the model and no change in
the use of its cache. A long prompt is not a hang: llama.cpp reports nothing while it reads 2048 tokens, and
vLLM's token counters change only when the whole prompt was read. So the planned time for the longest prompt
(`prefill_s`) is allowed twice. A crowded CPU may be ten times slower than planned: an engine that computes
there is at work for as long as it uses CPU time.

An engine that has answered before and no longer does, while its process lives, hangs too. An engine without
`/metrics` is never called hung.

Two signals distinguish frozen from busy, each within seconds:

- One of its processes is stopped (state T). No engine stops its own processes; only SIGSTOP and its like do.
- It answers nothing, and all its processes together use no CPU time. What prefills uses CPU time: on a CPU it
  computes, on a GPU it launches kernels and polls for their end; what the host keeps from running for want of
  CPU still gets its share now and then. So an engine that reads a prompt of minutes is never frozen, even
  where its server does not answer meanwhile. An idle engine uses hardly any, but it answers.
"""

from __future__ import annotations

from firesteel.engines.metrics import Activity
from firesteel.units import show_seconds
from firesteel.values import Value, replace

QUIET_S = 180.0
"""Without progress. A late kernel compilation or a first image has taken a minute or two; clients give up
after five. Our choice."""
UNREACHABLE_S = 120.0
"""Without an answer. A busy Python server may not answer for half a minute. Our choice."""
COMPUTING_SHARE = 0.05
"""Of one core: what an engine that computes on the CPU uses at least, on a crowded host too."""
PREFILL_MARGIN = 2.0
"""Planned prefill times have a band, and several prompts may be read one after another."""
NOTICE_S = 8.0
"""Without a sign of life, before `ps` tells it: two requests that got no answer within 3 s. Our choice."""
FROZEN_S = 30.0
"""Without a sign of life, before it is killed. Our choice: a restart within a minute of the freeze."""
IDLE_CPU_SHARE = 0.01
"""Of one core. A frozen engine uses none; one that computes uses at least its share of a crowded host."""
BLIND_S = 10.0
"""Without a reading: the watch itself did not run (the host was suspended, say), and starts over."""


class ActivityReading(Value):
    at_s: float
    """By a monotonic clock."""
    activity: Activity | None
    """None: it did not answer."""
    cpu_s: float | None = None
    """CPU time so far of an engine that computes on the CPU; None: of any other."""


class IdleTime(Value):
    """Since when an engine has made no progress."""

    now_s: float = 0.0
    last: Activity | None = None
    """The last one that was read."""
    since_s: float | None = None
    """No progress since then, although there are requests; None: it works, or nothing is known."""
    silent_since_s: float | None = None
    """No answer since then."""
    computed_s: float = 0.0
    """When it last used CPU time, where that is known and means work."""
    cpu_s: float | None = None

    def after(self, reading: ActivityReading) -> IdleTime:
        after = self._after(reading)
        if reading.cpu_s is None or self.cpu_s is None:
            return replace(after, cpu_s=reading.cpu_s)
        has_computed = reading.cpu_s - self.cpu_s > COMPUTING_SHARE * (reading.at_s - self.now_s)
        computed_s = reading.at_s if has_computed else self.computed_s
        return replace(after, cpu_s=reading.cpu_s, computed_s=computed_s)

    def _after(self, reading: ActivityReading) -> IdleTime:
        now_s, activity = reading.at_s, reading.activity
        if activity is None:
            silent = self.silent_since_s
            if silent is None and self.last is not None:
                silent = now_s
            return IdleTime(now_s, self.last, self.since_s, silent, self.computed_s)
        has_progressed = self.last is None or activity.pulse != self.last.pulse
        if not activity.requests or not activity.pulse:
            since = None
        elif has_progressed or self.since_s is None:
            since = now_s
        else:
            since = self.since_s
        return IdleTime(now_s, activity, since, None, self.computed_s)

    def reason(self, prefill_s: float = 0.0) -> str | None:
        if self.silent_since_s is not None:
            silent_s = self.now_s - max(self.silent_since_s, self.computed_s)
            if silent_s >= UNREACHABLE_S + PREFILL_MARGIN * max(0.0, prefill_s):
                return f"the engine runs but has not answered for {show_seconds(silent_s)}"
            return None
        if self.since_s is None or self.last is None:
            return None
        quiet_s = self.now_s - max(self.since_s, self.computed_s)
        if quiet_s < QUIET_S + PREFILL_MARGIN * max(0.0, prefill_s):
            return None
        last = self.last
        waiting = f" and {last.waiting} waiting" if last.waiting else ""
        requests = f"{last.running or 0} requests running{waiting}"
        tokens = f", {last.generated_tokens:,} tokens so far" if last.generated_tokens is not None else ""
        return f"the engine is stuck: {requests}, and no progress for {show_seconds(quiet_s)}{tokens}"


class ProcessReading(Value):
    at_s: float
    answered_at_s: float | None
    """When it answered a request last; None: never yet, so its silence says nothing."""
    cpu_s: float | None
    """CPU time of all its processes so far; None: not known."""
    is_stopped: bool = False
    """One of its processes is in state T."""


class FrozenTime(Value):
    """Since when an engine has shown no sign of life."""

    now_s: float | None = None
    alive_s: float = 0.0
    """When it answered or computed last."""
    cpu_s: float | None = None
    """Its CPU time then."""
    stopped_since_s: float | None = None
    read_cpu_s: float | None = None
    """Its CPU time at the last reading."""

    def after(self, reading: ProcessReading) -> FrozenTime:
        return replace(self._after(reading), read_cpu_s=reading.cpu_s)

    def _after(self, reading: ProcessReading) -> FrozenTime:
        now_s = reading.at_s
        if self.now_s is None or now_s - self.now_s > BLIND_S:
            return FrozenTime(now_s, now_s, reading.cpu_s, now_s if reading.is_stopped else None)
        stopped = self.stopped_since_s if reading.is_stopped else None
        if reading.is_stopped and stopped is None:
            stopped = now_s
        if reading.answered_at_s is None or self._has_computed(reading):
            return FrozenTime(now_s, now_s, reading.cpu_s, stopped)
        if reading.answered_at_s > self.alive_s:
            return FrozenTime(now_s, reading.answered_at_s, reading.cpu_s, stopped)
        return FrozenTime(now_s, self.alive_s, self.cpu_s, stopped)

    def _has_computed(self, reading: ProcessReading) -> bool:
        """Unknown counts as yes: without this signal a silent engine may be a busy one."""
        if reading.cpu_s is None or self.cpu_s is None:
            return True
        return reading.cpu_s - self.cpu_s > IDLE_CPU_SHARE * (reading.at_s - self.alive_s)

    @property
    def notice(self) -> str | None:
        """What is seen, for `ps`."""
        if self.stopped_since_s is not None:
            return "one of its processes is stopped, as by SIGSTOP"
        return "it does not answer and uses no CPU time" if self._silent_s >= NOTICE_S else None

    @property
    def reason(self) -> str | None:
        """Why it must end."""
        now_s = self.now_s or 0.0
        if self.stopped_since_s is not None and now_s - self.stopped_since_s >= FROZEN_S:
            stopped = show_seconds(now_s - self.stopped_since_s)
            return f"the engine is frozen: one of its processes has been stopped for {stopped}"
        if self._silent_s < FROZEN_S:
            return None
        return f"the engine is frozen: no answer and no CPU time used for {show_seconds(self._silent_s)}"

    @property
    def _silent_s(self) -> float:
        return (self.now_s or 0.0) - self.alive_s
