"""Judging what an engine tells of itself, against what was planned: kernels, speculation, cache, speed.

Pure, as `judge` is. Here a plan and a machine are held against each other, so most checks only tell; those
that fail a launch are the ones after which nobody would want it: a drafter that guesses nothing right, a
speed that is a fifth of the least that was planned.
"""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.edge.http.answer import Answer
from firesteel.engines import introspection
from firesteel.engines.introspection import DraftCounters, PrometheusSample
from firesteel.planner import Band
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import Expected

MIN_ACCEPTANCE = 0.05
"""A drafter that fits its model is right more often than that on any text: 0.24 to 0.40 with thinking off and
on, 0.7 on code. One whose experts were left out of a quantization comes near zero while answers stay clean
(https://github.com/jschmied/dgx-spark-setup-guide, seen 2026-11-15)."""
MIN_DRAFTED = 50
MAX_SLOWDOWN = 5
"""So many times below the least that was planned is another path, not a slow day."""


def kernels(expect: Expected, log: str) -> list[CheckResult]:
    """The kernels that the log names, against the flags that asked for them. Hybrids name several: one of
    them must be the one."""
    if expect.engine is None:
        return []
    named = introspection.kernels(expect.engine, log)
    checks = []
    for flag, asked in expect.kernels.items():
        logged = named.get(flag)
        if logged is None:
            checks.append(CheckResult(flag, True, f"{asked} was asked for; the log does not say", "note"))
            continue
        is_so = any(introspection.same_kernel(asked, each) for each in logged)
        checks.append(
            CheckResult(flag, is_so, f"asked for {asked}, the log says {', '.join(logged)}", "note")
        )
    free = [f"{flag} {', '.join(names)}" for flag, names in named.items() if flag not in expect.kernels]
    if free:
        checks.append(CheckResult("kernels", True, "; ".join(free), "note"))
    checks += [CheckResult("slow path", False, words, "note") for words in introspection.alarms(log)]
    return checks


def late_compilations(before: str, after: str) -> CheckResult | None:
    """Kernels compiled after warming: the warm-up missed a shape."""
    late = introspection.late_compilations(after) - introspection.late_compilations(before)
    if late <= 0:
        return None
    return CheckResult(
        "warm", False, f"{late} kernels were compiled while the checks ran, after warming", "note"
    )


def speculation(
    expect: Expected,
    before: tuple[PrometheusSample, ...],
    after: tuple[PrometheusSample, ...],
    answers: Iterable[Answer],
) -> CheckResult | None:
    """What its drafter came to on the checks' own requests."""
    found = _drafted(before, after, answers)
    if found is None or not found.drafted:
        if expect.drafts is None:
            return None
        saw = f"{expect.drafts} was planned, and the engine counted no drafted token"
        return CheckResult("speculation", False, saw, "note")
    saw = f"{found.accepted} of {found.drafted} drafted tokens accepted, {found.rate:.0%}"
    if found.steps:
        saw += f", {found.tokens_per_step:.2f} tokens a step"
    if found.drafted < MIN_DRAFTED:
        return CheckResult("speculation", True, f"{saw}; too few to tell", "note")
    return CheckResult("speculation", found.rate >= MIN_ACCEPTANCE, saw)


def _drafted(
    before: tuple[PrometheusSample, ...], after: tuple[PrometheusSample, ...], answers: Iterable[Answer]
) -> DraftCounters | None:
    """From the counters where there are some, else from what llama.cpp tells with each answer."""
    then, now = introspection.drafts(before), introspection.drafts(after)
    if then and now and now.drafted > then.drafted:
        return now.since(then)
    told = [(each.draft_tokens, each.accepted_tokens) for each in answers if each.draft_tokens]
    if not told:
        return now
    return DraftCounters(0, sum(drafted or 0 for drafted, _ in told), sum(taken or 0 for _, taken in told))


def speculation_speedup(expect: Expected, measured: float | None) -> CheckResult | None:
    """Drafting that comes out slower than the plan without it."""
    plain = expect.decode_tokens_per_s
    if expect.drafts is None or plain is None or measured is None or measured >= plain.expected:
        return None
    saw = f"{measured:.1f} tok/s with {expect.drafts}, {plain.expected:.1f} were planned without"
    return CheckResult("speculation pays", False, f"{saw}; try it without", "note")


def kv_cache(
    expect: Expected, samples: tuple[PrometheusSample, ...], log_tokens: int | None
) -> CheckResult | None:
    """The engine's own figure, which wins over the plan's."""
    told = introspection.cache_tokens(samples) or log_tokens
    if told is None:
        return None
    if expect.context and told < expect.context:
        saw = f"the engine has {told:,} tokens, less than one request of {expect.context:,} may use"
        return CheckResult("KV cache", False, saw)
    if expect.kv_tokens is None:
        return CheckResult("KV cache", True, f"{told:,} tokens", "note")
    low, high = expect.kv_tokens
    planned = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return CheckResult("KV cache", low <= told <= high, f"{told:,} tokens, planned {planned}", "note")


def speed(expect: Expected, answers: Iterable[Answer]) -> CheckResult | None:
    """The fastest answer: whatever else the host does only slows one."""
    measured = fastest_decode(answers)
    band = _planned_speed(expect)
    if measured is None:
        return None
    if band is None:
        return CheckResult("speed", True, f"{measured:.1f} tok/s, nothing planned", "note")
    saw = f"{measured:.1f} tok/s, planned {band.low:.1f} to {band.high:.1f}"
    if measured < band.low / MAX_SLOWDOWN:
        return CheckResult("speed", False, saw, "note" if expect.is_cpu else "gate")
    return CheckResult("speed", band.low <= measured <= band.high, saw, "note")


def fastest_decode(answers: Iterable[Answer]) -> float | None:
    return max((rate for each in answers if (rate := each.decode_tokens_per_s)), default=None)


def _planned_speed(expect: Expected) -> Band | None:
    return expect.drafted_tokens_per_s or expect.decode_tokens_per_s


def nan_logits(
    before: tuple[PrometheusSample, ...], after: tuple[PrometheusSample, ...]
) -> CheckResult | None:
    """vLLM counts requests whose logits held NaN, where VLLM_COMPUTE_NANS_IN_LOGITS is set."""
    name = "vllm:corrupted_requests"
    then, now = introspection.total(before, name), introspection.total(after, name)
    if now is None:
        return None
    new = now - (then or 0)
    return CheckResult("no NaN", new <= 0, f"vLLM counted {new:.0f} requests with NaN in their logits")
