"""Is an engine stuck? Pure: what it said of itself, and when -> why, or None.

    stuck(history, prefill_s) -> reason | None         `history`: Looks, oldest first
    Quiet().after(look).reason(prefill_s)              the same without keeping a history, for a supervisor

Engines hang with `/health` at 200 (https://github.com/vllm-project/vllm/issues/41725, seen 2026-11-15). So
what counts is work: requests are there, and neither a token nor a call to the model nor the use of its cache
has moved for a while. A long prompt is no hang: llama.cpp says nothing while it reads 2048 tokens, vLLM's
token counters move when a prompt is read to its end. The time that the plan gives to the longest prompt is
handed in and waited for twice over.

An engine that answered once and then no more, while its process lives, is stuck too. One that never told
anything (no `/metrics`) is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from firesteel.engines.metrics import Activity
from firesteel.units import show_seconds

QUIET_S = 180.0
"""Without a sign of work. A kernel that is compiled late, or a first picture, has taken a minute or two; a
client gives up after five. Our choice."""
UNREACHABLE_S = 120.0
"""Without an answer. A busy Python server may leave one for half a minute. Our choice."""
PREFILL_MARGIN = 2.0
"""Plans of prefill have a band, and several prompts may be read one after another."""


@dataclass(frozen=True, slots=True)
class ActivityReading:
    at_s: float
    """By a clock that nobody sets."""
    activity: Activity | None
    """None: it did not answer."""


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Since when there was nothing to see."""

    now_s: float = 0.0
    last: Activity | None = None
    """The last that it told."""
    since_s: float | None = None
    """No sign of work since, although there is work; None: all is well, or nobody knows."""
    silent_since_s: float | None = None
    """No answer since."""

    def after(self, look: ActivityReading) -> IdleTime:
        if look.activity is None:
            silent = self.silent_since_s
            if silent is None and self.last is not None:
                silent = look.at_s
            return IdleTime(look.at_s, self.last, self.since_s, silent)
        worked = self.last is None or look.activity.pulse != self.last.pulse
        idle = not look.activity.requests or not look.activity.pulse
        if idle:
            since = None
        elif worked or self.since_s is None:
            since = look.at_s
        else:
            since = self.since_s
        return IdleTime(look.at_s, look.activity, since, None)

    def reason(self, prefill_s: float = 0.0) -> str | None:
        if self.silent_since_s is not None:
            silent_s = self.now_s - self.silent_since_s
            if silent_s >= UNREACHABLE_S:
                return f"the engine runs and has not answered for {show_seconds(silent_s)}"
            return None
        if self.since_s is None or self.last is None:
            return None
        quiet_s = self.now_s - self.since_s
        if quiet_s < QUIET_S + PREFILL_MARGIN * max(0.0, prefill_s):
            return None
        return f"the engine is stuck: {_work(self.last)}, and no sign of work for {show_seconds(quiet_s)}" + (
            f", {self.last.generated_tokens:,} tokens so far"
            if self.last.generated_tokens is not None
            else ""
        )


def stuck(history: Iterable[ActivityReading], prefill_s: float = 0.0) -> str | None:
    """`prefill_s`: how long the plan gives to the longest prompt."""
    quiet = IdleTime()
    for look in history:
        quiet = quiet.after(look)
    return quiet.reason(prefill_s)


def _work(activity: Activity) -> str:
    waiting = f" and {activity.waiting} waiting" if activity.waiting else ""
    return f"{activity.running or 0} requests running{waiting}"
