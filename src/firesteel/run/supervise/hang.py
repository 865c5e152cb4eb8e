"""Detect a hung engine from its metrics. Pure.

    IdleTime().after(reading).after(reading).reason(prefill_s) -> why it hangs, or None

Engines hang while `/health` returns 200 (https://github.com/vllm-project/vllm/issues/41725, seen 2026-11-15).
So what counts is work: there are requests, but for a while no token, no call of the model and no change in
the use of its cache. A long prompt is not a hang: llama.cpp reports nothing while it reads 2048 tokens, and
vLLM's token counters change only when the whole prompt was read. So the planned time for the longest prompt
(`prefill_s`) is allowed twice.

An engine that has answered before and no longer does, while its process lives, hangs too. An engine without
`/metrics` is never called hung.
"""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.engines.metrics import Activity
from firesteel.units import show_seconds

QUIET_S = 180.0
"""Without progress. A late kernel compilation or a first image has taken a minute or two; clients give up
after five. Our choice."""
UNREACHABLE_S = 120.0
"""Without an answer. A busy Python server may not answer for half a minute. Our choice."""
PREFILL_MARGIN = 2.0
"""Planned prefill times have a band, and several prompts may be read one after another."""


@dataclass(frozen=True, slots=True)
class ActivityReading:
    at_s: float
    """By a monotonic clock."""
    activity: Activity | None
    """None: it did not answer."""


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Since when an engine has made no progress."""

    now_s: float = 0.0
    last: Activity | None = None
    """The last one that was read."""
    since_s: float | None = None
    """No progress since then, although there are requests; None: it works, or nothing is known."""
    silent_since_s: float | None = None
    """No answer since then."""

    def after(self, reading: ActivityReading) -> IdleTime:
        now_s, activity = reading.at_s, reading.activity
        if activity is None:
            silent = self.silent_since_s
            if silent is None and self.last is not None:
                silent = now_s
            return IdleTime(now_s, self.last, self.since_s, silent)
        has_progressed = self.last is None or activity.pulse != self.last.pulse
        if not activity.requests or not activity.pulse:
            since = None
        elif has_progressed or self.since_s is None:
            since = now_s
        else:
            since = self.since_s
        return IdleTime(now_s, activity, since, None)

    def reason(self, prefill_s: float = 0.0) -> str | None:
        if self.silent_since_s is not None:
            silent_s = self.now_s - self.silent_since_s
            if silent_s >= UNREACHABLE_S:
                return f"the engine runs but has not answered for {show_seconds(silent_s)}"
            return None
        if self.since_s is None or self.last is None:
            return None
        quiet_s = self.now_s - self.since_s
        if quiet_s < QUIET_S + PREFILL_MARGIN * max(0.0, prefill_s):
            return None
        last = self.last
        waiting = f" and {last.waiting} waiting" if last.waiting else ""
        requests = f"{last.running or 0} requests running{waiting}"
        tokens = f", {last.generated_tokens:,} tokens so far" if last.generated_tokens is not None else ""
        return f"the engine is stuck: {requests}, and no progress for {show_seconds(quiet_s)}{tokens}"
